"""Which browser pages follow a run in progress, and what each of them was given last."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

RECENT = 5.0
"""Seconds after which a page that asks no more counts as closed; one that is open asks every two."""

PAUSE = 0.02


@dataclass
class _Page:
    asked: float
    shown: int = 0
    told: bool = False


class Audience:
    """Pages by the number that each got with its first answer, and sends along with every question.

    Args:
        clock: seconds from any start.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._pages: dict[int, _Page] = {}
        self._admitted = 0

    def admit(self) -> int:
        """The number of another page."""
        with self._lock:
            self._admitted += 1
            self._pages = {number: page for number, page in self._pages.items() if self._is_open(page)}
            self._pages[self._admitted] = _Page(self._clock())
            return self._admitted

    def gave(self, number: int | None, shown: int = 0, ended: bool = False) -> None:
        """Note that a page has an answer; one without a number, or with one that is not known, does not count.

        Args:
            number: of the page.
            shown: number of the map, if that was the answer.
            ended: whether the answer said that training has ended.
        """
        with self._lock:
            page = self._pages.get(number or 0)
            if page is not None:
                page.asked, page.shown, page.told = self._clock(), max(page.shown, shown), page.told or ended

    def __bool__(self) -> bool:
        """Whether any page is open."""
        with self._lock:
            return any(map(self._is_open, self._pages.values()))

    def wait(self, shown: int, seconds: float) -> bool:
        """Wait until every open page knows that training has ended, and has the map; False if some still do not.

        Args:
            shown: number of the last map.
            seconds: after which to give up.
        """
        until = self._clock() + seconds
        while waiting := self._waiting(shown):
            if self._clock() >= until:
                break
            time.sleep(PAUSE)
        return not waiting

    def _waiting(self, shown: int) -> bool:
        with self._lock:
            return any(self._is_open(page) and (not page.told or page.shown < shown) for page in self._pages.values())

    def _is_open(self, page: _Page) -> bool:
        return self._clock() - page.asked < RECENT
