"""Run jobs as child processes, several at a time; what is finished stays, whatever happens to the rest."""

import contextlib
import json
import math
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from vje.errors import UserError, cannot_write, command
from vje.experiments.grid import PYTHON
from vje.experiments.plan import Job, divergence, profile_state, state_of
from vje.lock import lock
from vje.runs import write_json
from vje.signals import heeding
from vje.terminal import say

POLL = 0.1
TAIL = 4
"""Lines of a log that are shown when a run fails."""


@dataclass
class Child:
    """A job under way: the process of its present step, and the steps after that."""

    job: Job  # what is made
    steps: list[str]  # those left, the present one first
    log: IO[bytes]  # where its output goes
    process: "subprocess.Popen[bytes] | None" = None  # of the present step
    told: bool = False  # whether it was asked to stop
    began: float = field(default_factory=time.monotonic)  # when the job was started

    def start(self, data_dir: Path | None) -> None:
        """Begin the present step, in a session of its own: Ctrl-C is passed on once, not by the terminal as well."""
        words = self.job.command(self.steps[0], data_dir)
        self.log.write(f"$ {command(*words)}\n".encode())
        self.log.flush()
        self.process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True
        )

    def tell(self, number: int) -> None:
        """Send the process a signal, if there is one."""
        if self.process is not None and self.process.poll() is None:
            self.told = True
            self.process.send_signal(number)

    def line(self) -> str:
        """Where it stands."""
        text = f"{self.job.run.name}: {self.steps[0]}"
        records = self.job.folder.metrics() if self.steps[0] == "train" else []
        if records:
            text += f", epoch {records[-1]['epoch']} of {self.job.run.epochs}"
            text += f", {records[-1].get('images_per_second', 0):,.0f} images/s"
            knn = records[-1].get("knn", {}).get("z")
            text += f", k-NN {knn:.1f}%" if isinstance(knn, float) else ""
        return f"{text}, {time.monotonic() - self.began:,.0f} s"


@dataclass
class Runner:
    """Works through jobs."""

    jobs: Sequence[Job]  # to do; those with an obstacle are passed over
    data_dir: Path | None  # where data sets are
    parallel: int  # how many at a time
    console: Console  # to say what happens
    minutes: float | None = None  # after which to stop, as Ctrl-C would; None for no limit
    # gives the jobs as things stand, for those that another process had in hand
    replan: Callable[[], Sequence[Job]] | None = None
    failures: dict[str, str] = field(default_factory=dict)  # what went wrong, by the run's name
    stopped: bool = False  # whether someone asked to stop

    def __post_init__(self) -> None:
        self._waiting = [job for job in self.jobs if job.steps and not job.obstacle]
        self._total = len(self._waiting)
        self._children: list[Child] = []
        self._elsewhere: set[str] = set()

    def __call__(self) -> None:
        """Run everything, or as much as there is time for before a request to stop."""
        until = math.inf if self.minutes is None else time.monotonic() + 60 * self.minutes
        with heeding(self._request), self._live() as live:
            while self._children or (self._waiting and not self.stopped):
                for _ in list(self._waiting):  # each once, as one that has to wait goes to the end
                    if len(self._children) < self.parallel and not self.stopped:
                        self._begin(self._waiting.pop(0))
                time.sleep(POLL)
                if time.monotonic() >= until and not self.stopped:
                    say(self.console, f"{self.minutes:g} minutes are over", "yellow")
                    self._stop(signal.SIGTERM)
                for child in list(self._children):
                    self._look(child)
                if live is not None:
                    live.update(Text("\n".join(child.line() for child in self._children)))

    def _begin(self, job: Job) -> None:
        """Start a job, or put it last if another process has it in hand: perhaps one that outlived its parent."""
        name, file = job.run.name, job.folder.path.with_name(f"{job.folder.path.name}.log")
        log = _locked(file)
        if log is None:
            self._waiting.append(job)
            if name not in self._elsewhere:
                self._elsewhere.add(name)
                say(
                    self.console,
                    f"{name}: another process is making it, see {file}; waiting until it is through",
                    "yellow",
                )
            return
        if name in self._elsewhere:
            planned = self._planned(job)
            if planned is None:
                log.close()
                return
            job = planned
        child = Child(job, list(job.steps), log)
        number = self._total - len(self._waiting)
        how = "resuming" if job.state == "interrupted" else "next"
        say(self.console, f"[{number} of {self._total}] {job.run.name}: {how}: {', '.join(child.steps)}")
        self._children.append(child)
        self._start(child)

    def _start(self, child: Child) -> None:
        """Start a job's next step; a request to stop that came while its process was being made reaches it too."""
        child.start(self.data_dir)
        if self.stopped and not child.told:
            child.tell(signal.SIGTERM)

    def _planned(self, job: Job) -> Job | None:
        """What another process has left to do of a job; None if nothing, or nothing that can be done."""
        name = job.run.name
        try:
            jobs = {found.run.name: found for found in self.replan()} if self.replan is not None else {}
        except UserError as error:
            self.failures[name] = str(error)
            say(self.console, f"{name}: {error}", "red")
            return None
        job = jobs.get(name, job)
        if job.steps and not job.obstacle:
            return job
        say(self.console, f"{name}: the other process is through; {job.obstacle or 'nothing is left to do'}")
        return None

    def _look(self, child: Child) -> None:
        """Go on to the next step, if the present one is over."""
        assert child.process is not None
        status = child.process.poll()
        if status is None:
            return
        if status == 0 and len(child.steps) > 1 and not self.stopped:
            child.steps.pop(0)
            self._start(child)
            return
        self._children.remove(child)
        child.log.close()
        name, seconds = child.job.run.name, time.monotonic() - child.began
        if status == 0 and len(child.steps) == 1:
            say(self.console, f"{name}: done after {seconds:,.0f} s", "green")
        elif state_of(child.job.folder, child.job.run.epochs) == "diverged":
            folder = child.job.folder  # a result like any other: the paper has such runs too
            again = command("vje", "train", "--resume", folder.path)
            say(self.console, f"{name}: {divergence(folder)}; to try again: {again}", "yellow")
        elif self.stopped:
            say(self.console, f"{name}: stopped; it goes on from there next time")
        else:
            last = _last_lines(Path(child.log.name))
            self.failures[name] = f"vje {child.steps[0]} failed: {last[-1] if last else f'status {status}'}"
            say(
                self.console,
                f"{name}: vje {child.steps[0]} failed with status {status}; the end of {child.log.name}:",
                "red",
            )
            for line in last:
                say(self.console, f"    {line}", "dim")

    @contextlib.contextmanager
    def _live(self) -> Iterator[Live | None]:
        """A line for each job on a terminal; elsewhere, beginnings and ends are enough."""
        if not self.console.is_terminal:
            yield None
            return
        with Live(console=self.console, refresh_per_second=2, transient=True) as live:
            yield live

    def _request(self, number: int, frame: FrameType | None) -> None:
        """Pass signals to stop on to the children, which save themselves; a second Ctrl-C ends them at once."""
        self._stop(signal.SIGKILL if self.stopped and number == signal.SIGINT else signal.SIGTERM)

    def _stop(self, number: int) -> None:
        """Begin nothing more, and tell the children."""
        self.stopped = True
        for child in self._children:
            child.tell(number)


def _locked(file: Path) -> IO[bytes] | None:
    """The log, open to write at its end; None if another process makes the same run.

    The lock is the child's too, so it holds even if this process dies before it.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        log = file.open("ab")
    except OSError as error:
        raise cannot_write(file, error, "choose another --out") from None
    if not lock(log):
        log.close()
        return None
    return log


def _last_lines(log: Path) -> list[str]:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line.rstrip() for line in lines if line.strip()][-TAIL:]


def can_profile(out: Path) -> bool:
    """Whether the computational profile lacks what can be had here: all of it, or speed and memory on a GPU."""
    state = profile_state(out)
    if state != "counted":
        return state == "missing"
    import torch

    return torch.cuda.is_available()


def profile(out: Path, console: Console) -> str:
    """Make ``OUT/profile.json`` with ``vje profile``; returns what went wrong, if anything did."""
    console.print("computational profile: vje profile")
    with (out / "profile.log").open("ab") as log:
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # run() ends its process if interrupted
        try:
            process = subprocess.run([*PYTHON, "profile", "--json"], stdout=subprocess.PIPE, stderr=log, check=False)
        finally:
            signal.signal(signal.SIGTERM, before)
    if process.returncode:
        return f"vje profile failed: {(_last_lines(out / 'profile.log') or ['no output'])[-1]}"
    import torch

    from vje.environment import environment

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    methods = {row["method"]: row for row in json.loads(process.stdout)}
    write_json(out / "profile.json", {"methods": methods, "environment": environment(device)})
    return ""
