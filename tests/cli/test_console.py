"""Without a terminal, as in a log file, what takes long says how far it is: at most a line a minute."""

import io

import pytest
from rich.console import Console

from vje.cli import console as display
from vje.training.loop import Progress


@pytest.fixture
def clock(monkeypatch):
    """The time, which stands still unless it is set."""
    now = [1000.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    return now


def progress(step):
    return Progress(2, 3, step, 100, 50, 25.0, {"loss": 1.25, "other": 7.0})


def lines(stream):
    return stream.getvalue().splitlines()


def test_training_tells_where_it_is_once_a_minute(clock, capsys):
    stream = io.StringIO()
    with display.TrainingDisplay(Console(file=stream, width=300), 300, 0) as shown:
        shown.on_progress(progress(1))
        clock[0] += 59
        shown.on_progress(progress(30))
        assert lines(stream) == []
        clock[0] += 1
        shown.on_progress(progress(40))  # 60 steps of 50 images are left of the epoch, 160 of the run, at 25 a second
        shown.on_progress(progress(41))
        assert lines(stream) == ["epoch 2/3  loss 1.2  25 img/s  epoch 2m00s, run 5m20s left"]
        shown.on_recorded({"epoch": 2, "loss": 1.0, "effective_rank": 5.0, "images_per_second": 25.0})
        clock[0] += 59
        shown.on_progress(progress(90))  # the epoch's own line was less than a minute ago
    assert len(lines(stream)) == 1 and capsys.readouterr().out.startswith("epoch 2  loss 1.00")


def test_counting_tells_where_it_is_once_a_minute(clock):
    stream = io.StringIO()
    with display.counting("held-out images", Console(file=stream, width=300)) as report:
        report(500, 9000)
        clock[0] += 61
        report(1000, 9000)
        report(1500, 9000)
    assert lines(stream) == ["held-out images: 1,000 of 9,000"]


def test_a_terminal_has_its_bar_alone(clock):
    stream = io.StringIO()
    with display.counting("images", Console(file=stream, force_terminal=True, width=80)) as report:
        clock[0] += 61
        report(1000, 9000)
    assert "1,000 of 9,000" not in stream.getvalue()
