"""Children: in turn and side by side, failing alone, told to stop, and never two for one run."""

import os
import signal
import sys
import threading
import time
from dataclasses import dataclass

import pytest
from rich.console import Console

from vje.experiments.execute import Runner, _locked
from vje.experiments.plan import Job, Run
from vje.runs import RunFolder

NOTE = "import pathlib, sys, time; place = pathlib.Path({folder!r}); "


@dataclass(frozen=True)
class Scripted(Job):
    """A job whose steps are lines of Python."""

    def command(self, step, data_dir):
        return [sys.executable, "-c", NOTE.format(folder=str(self.folder.path.parent)) + step]


def job(out, seed, *steps, **more):
    run = Run("digits", (), 1, seed)
    return Scripted(run, RunFolder(out / run.name), "missing", steps, **more)


@pytest.fixture
def work(tmp_path):
    def run(*jobs, parallel=1, minutes=None):
        console = Console(record=True, width=300)
        runner = Runner(jobs, None, parallel, console, minutes)
        runner()
        return runner, console.export_text()

    return run


def test_steps_are_taken_in_order_and_a_failure_ends_its_run_alone(tmp_path, work):
    bad = job(tmp_path, 0, "print('about to'); print('vje: out of luck'); sys.exit(2)", "(place / 'never').touch()")
    good = job(tmp_path, 1, "(place / 'one').touch()", "(place / 'one').rename(place / 'two')")
    runner, said = work(bad, good)
    assert (tmp_path / "two").exists() and not (tmp_path / "never").exists()
    assert list(runner.failures) == ["digits_e1_s0"]
    assert runner.failures["digits_e1_s0"].endswith("failed: vje: out of luck")
    assert "failed with status 2; the end of" in said and "    about to" in said
    assert "digits_e1_s1: done after" in said
    assert "out of luck" in (tmp_path / "digits_e1_s0.log").read_text()


def test_a_run_that_diverges_is_no_failure(tmp_path, work):
    run = "run = place / 'digits_e1_s{}'; run.mkdir(); (run / 'config.json').write_text('{{}}'); "
    fail = '(run / \'failed.json\').write_text(\'{"step": 7, "epoch": 1, "message": "loss = nan"}\'); sys.exit(2)'
    wild = job(tmp_path, 0, run.format(0) + fail, "(place / 'never').touch()")
    bad = job(tmp_path, 1, run.format(1) + "sys.exit(2)")
    runner, said = work(wild, bad)
    assert list(runner.failures) == ["digits_e1_s1"] and not (tmp_path / "never").exists()
    assert f"digits_e1_s0: diverged at step 7; to try again: vje train --resume {tmp_path / 'digits_e1_s0'}" in said


def test_children_have_the_environment_of_this_process(tmp_path, work, monkeypatch):
    monkeypatch.setenv("VJE_TEST_MARK", "as here")
    runner, _ = work(job(tmp_path, 0, "import os; (place / 'mark').write_text(os.environ['VJE_TEST_MARK'])"))
    assert runner.failures == {} and (tmp_path / "mark").read_text() == "as here"


def test_runs_side_by_side_meet(tmp_path, work):
    """Each waits for the other's file, which only works if both are there at once."""
    wait = "(place / '{}').touch()\nwhile not (place / '{}').exists(): time.sleep(0.01)"
    runner, _ = work(job(tmp_path, 0, wait.format("a", "b")), job(tmp_path, 1, wait.format("b", "a")), parallel=2)
    assert runner.failures == {}


def test_when_the_time_is_over_children_are_told_and_nothing_more_begins(tmp_path, work):
    wait = "import signal; signal.signal(signal.SIGTERM, lambda *_: ((place / 'told').touch(), sys.exit(0))); "
    long = job(tmp_path, 0, wait + "time.sleep(60)", "(place / 'never').touch()")
    runner, said = work(long, job(tmp_path, 1, "(place / 'never').touch()"), minutes=0.02)
    assert runner.stopped and not runner.failures
    assert (tmp_path / "told").exists() and not (tmp_path / "never").exists()
    assert "0.02 minutes are over" in said and "digits_e1_s0: stopped" in said


def test_what_has_an_obstacle_or_nothing_to_do_is_passed_over(tmp_path, work):
    _, said = work(job(tmp_path, 0), job(tmp_path, 1, "sys.exit(1)", obstacle="no data"))
    assert said == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_stop_reaches_the_child_once_and_starts_nothing_more(tmp_path, work, number):
    polite = (
        "import signal; hits = []\nsignal.signal(signal.SIGTERM, lambda *_: hits.append(1))\n"
        "(place / 'ready').touch()\n"
        "while not hits: time.sleep(0.01)\ntime.sleep(0.1); (place / 'saved').write_text(str(len(hits))); sys.exit(130)"
    )

    def ask():
        until = time.monotonic() + 20
        while not (tmp_path / "ready").exists() and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    threading.Thread(target=ask).start()
    runner, said = work(job(tmp_path, 0, polite), job(tmp_path, 1, "(place / 'later').touch()"))
    assert runner.stopped and runner.failures == {}
    assert (tmp_path / "saved").read_text() == "1" and not (tmp_path / "later").exists()
    assert "digits_e1_s0: stopped; it goes on from there next time" in said
    assert signal.getsignal(number) is before


def test_a_run_that_another_process_makes_is_left_alone(tmp_path, work):
    with _locked(tmp_path / "digits_e1_s0.log"):
        runner, said = work(job(tmp_path, 0, "(place / 'twice').touch()"))
    assert "another process is making it" in said and "digits_e1_s0" in runner.failures
    assert not (tmp_path / "twice").exists()
