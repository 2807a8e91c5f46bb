"""Children: in turn and side by side, failing alone, told to stop, and never two for one run."""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import pytest
from rich.console import Console

from vje.errors import UserError
from vje.experiments.execute import Runner, _locked
from vje.experiments.grid import Run
from vje.experiments.plan import Job
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
    def run(*jobs, parallel=1, minutes=None, replan=None):
        console = Console(record=True, width=300)
        runner = Runner(jobs, None, parallel, console, minutes, replan)
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


def test_commands_in_a_log_can_be_pasted(tmp_path, work):
    spaced = job(tmp_path / "my runs", 0, "print('there')")
    work(spaced)
    first, second = (tmp_path / "my runs" / "digits_e1_s0.log").read_text().splitlines()
    assert shlex.split(first) == ["$", *spaced.command(spaced.steps[0], None)] and second == "there"


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
        wait_for(tmp_path / "ready")
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    threading.Thread(target=ask).start()
    runner, said = work(job(tmp_path, 0, polite), job(tmp_path, 1, "(place / 'later').touch()"))
    assert runner.stopped and runner.failures == {}
    assert (tmp_path / "saved").read_text() == "1" and not (tmp_path / "later").exists()
    assert "digits_e1_s0: stopped; it goes on from there next time" in said
    assert signal.getsignal(number) is before


# Runs that another process has in hand


def wait_for(file):
    until = time.monotonic() + 20
    while not file.exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert file.exists()


ORPHAN = """
import pathlib, runpy, sys
from rich.console import Console
here, out = runpy.run_path(sys.argv[1]), pathlib.Path(sys.argv[2])
wait = "(place / 'begun').touch()\\nwhile not (place / 'other').exists(): time.sleep(0.01)\\n(place / 'made').touch()"
here["Runner"]([here["job"](out, 0, wait, "(place / 'never').touch()")], None, 1, Console())()
"""


def test_a_request_while_a_process_is_being_made_reaches_it_once(tmp_path, work, monkeypatch):
    """Between the decision to start a step and its process there is none to tell."""
    polite = (
        "import signal; hits = []\nsignal.signal(signal.SIGTERM, lambda *_: hits.append(1))\n"
        "(place / '{0}').touch()\nwhile not hits: time.sleep(0.01)\n"
        "time.sleep(0.1); (place / '{0} told').write_text(str(len(hits))); sys.exit(130)"
    )
    start = subprocess.Popen

    def interrupted(*arguments, **more):
        if (tmp_path / "first").exists():  # now the second is being made
            os.kill(os.getpid(), signal.SIGTERM)
        process = start(*arguments, **more)
        if not (tmp_path / "first").exists():
            wait_for(tmp_path / "first")
        else:
            wait_for(tmp_path / "second")
        return process

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    jobs = [job(tmp_path, seed, polite.format(name)) for seed, name in enumerate(("first", "second"))]
    runner, _ = work(*jobs, parallel=2)
    assert runner.stopped and runner.failures == {}
    assert [(tmp_path / f"{name} told").read_text() for name in ("first", "second")] == ["1", "1"]


def test_what_outlived_its_parent_is_waited_for_while_others_go_on(tmp_path, work):
    """The call before was killed, and its child goes on until it sees what the other job makes."""
    parent = subprocess.Popen([sys.executable, "-c", ORPHAN, __file__, str(tmp_path)])
    wait_for(tmp_path / "begun")
    parent.kill()
    parent.wait()
    steps = ["(place / 'twice').touch()", "(place / 'made').rename(place / 'measured')"]

    def replan():
        assert (tmp_path / "made").exists()
        return [job(tmp_path, 0, steps[1]), job(tmp_path, 1)]

    runner, said = work(job(tmp_path, 0, *steps), job(tmp_path, 1, "(place / 'other').touch()"), replan=replan)
    assert runner.failures == {} and not runner.stopped
    assert (tmp_path / "measured").exists()
    assert not (tmp_path / "twice").exists() and not (tmp_path / "never").exists()
    assert said.count("digits_e1_s0: another process is making it") == 1
    assert said.index("[1 of 2] digits_e1_s1") < said.index("[2 of 2] digits_e1_s0")


@pytest.mark.parametrize(("wrong", "words"), [("", "nothing is left to do"), ("other settings", "other settings")])
def test_what_another_process_finished_or_spoiled_is_not_begun(tmp_path, work, monkeypatch, wrong, words):
    busy = [None] * 3
    monkeypatch.setattr("vje.experiments.execute._locked", lambda file: busy.pop() if busy else _locked(file))

    def replan():
        if wrong:
            raise UserError(wrong)
        return [job(tmp_path, 0)]

    runner, said = work(job(tmp_path, 0, "(place / 'twice').touch()"), replan=replan)
    assert runner.failures == ({"digits_e1_s0": wrong} if wrong else {}) and words in said
    assert not (tmp_path / "twice").exists()


@pytest.mark.parametrize("minutes", [0.005, None])
def test_waiting_for_another_process_ends_with_the_time_and_with_ctrl_c(tmp_path, work, minutes):
    before = signal.getsignal(signal.SIGINT)

    def interrupt():
        while signal.getsignal(signal.SIGINT) is before:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    if minutes is None:
        threading.Thread(target=interrupt, daemon=True).start()
    with _locked(tmp_path / "digits_e1_s0.log"):
        runner, said = work(job(tmp_path, 0, "(place / 'twice').touch()"), minutes=minutes)
    assert runner.stopped and runner.failures == {} and (minutes is None or "waiting until it is through" in said)
    assert not (tmp_path / "twice").exists()


def test_a_log_that_cannot_be_written_is_told_in_words(tmp_path):
    (tmp_path / "run.log").mkdir()
    with pytest.raises(UserError, match=r"cannot write .*run\.log.*choose another --out"):
        _locked(tmp_path / "run.log")
