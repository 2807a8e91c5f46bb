"""Who follows a run: pages come and go, and the end waits for those that are there."""

import pytest

from vje.reporting import audience
from vje.reporting.audience import RECENT, Audience


class Clock:
    """Goes on only when told to, or when somebody sleeps."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(audience.time, "sleep", found.sleep)
    return found


def test_a_page_is_there_while_it_asks(clock):
    pages = Audience(clock)
    assert not pages
    number = pages.admit()
    for _ in range(3):
        clock.sleep(RECENT * 0.8)
        assert pages
        pages.gave(number)
    clock.sleep(RECENT)
    assert not pages
    pages.gave(number)  # it was only asleep
    assert pages


def test_strangers_do_not_count(clock):
    pages = Audience(clock)
    for number in (None, 0, 1, 99):
        pages.gave(number, ended=False)
    assert not pages and pages.wait(3, 60) and clock.now == 100


def test_the_wait_is_over_when_all_know_and_have_the_map(clock):
    pages = Audience(clock)
    one, other = pages.admit(), pages.admit()
    pages.gave(one, ended=True)
    pages.gave(one, shown=4)
    pages.gave(other, shown=3)
    assert not pages.wait(4, 1)
    pages.gave(other, ended=True)
    assert not pages.wait(4, 1)
    pages.gave(other, shown=4)
    before = clock.now
    assert pages.wait(4, 60) and clock.now == before


def test_another_page_takes_nobodys_place(clock):
    pages = Audience(clock)
    pages.admit()
    pages.gave(pages.admit(), shown=4, ended=True)
    assert not pages.wait(4, 1)  # the first knows nothing yet


def test_what_a_page_has_it_keeps(clock):
    pages = Audience(clock)
    page = pages.admit()
    pages.gave(page, shown=4, ended=True)
    pages.gave(page)  # asked for something else
    assert pages.wait(4, 60) and clock.now == 100


def test_a_page_that_was_closed_is_waited_for_no_longer_than_it_is_missed(clock):
    pages = Audience(clock)
    pages.admit()
    assert pages.wait(0, 60)
    assert clock.now == pytest.approx(100 + RECENT, abs=0.1)
