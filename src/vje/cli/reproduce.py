"""``vje reproduce NAME``: make a table or figure of the paper, from its runs to the comparison with the paper."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from vje.cli.checks import at_least
from vje.errors import UserError, cannot_write, command
from vje.experiments import Cell, Experiment, experiment_names, load_experiment
from vje.experiments.estimate import estimate
from vje.experiments.grid import Scale
from vje.experiments.plan import Job, divergence, missing_sets, plan, plan_all, profile_state
from vje.terminal import duration, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console


@dataclass(frozen=True)
class Options:
    """Make tables and figures of the paper: train what is missing, measure, and put ours beside the paper's.

    Runs that are finished are not made again, also if another table made them; interrupted ones go on. Ctrl-C stops
    after saving, and the same command goes on from there. A run that diverged is not trained again: the paper has such
    runs too. `vje train --resume RUN` tries it again.
    """

    names: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")]] = ()
    """Tables and figures (see --list), or .toml files that declare one. They share runs."""
    epochs: int | None = None
    """Longest run; the default is the paper's. What is written says so if it is less."""
    seeds: int | None = None
    """Seeds of each cell, at most; the default is the paper's, mostly 3."""
    only: tuple[str, ...] = ()
    """Make the runs of these data sets alone, such as cifar10; cells of others show what is there."""
    data_dir: Path | None = None
    """Where data sets are; the default is data."""
    out: Path = Path("runs/reproduce")
    """Folder for the runs, with a log beside each, and for the tables."""
    jobs: int = 1
    """Runs side by side on one device: worth it where one alone does not fill it (docs/reproduce.md)."""
    minutes: float | None = None
    """Stop after this long, saving what is under way; the same command goes on from there."""
    dry_run: bool = False
    """Only say what would be done, and how long it may take."""
    list: bool = False
    """Only list the tables and figures, and how many of their runs are there."""
    table_only: bool = False
    """Train and measure nothing: make the table from what is there."""
    note: tuple[str, ...] = ()
    """Sentences to put below each table, each in quotes: what is particular about the data or the machine, say."""


def run(arguments: list[str]) -> int:
    """Plan, execute, write; 1 if a run failed, 130 after an interruption."""
    from rich.console import Console

    options = tyro.cli(Options, args=arguments, prog="vje reproduce")
    at_least(1, epochs=options.epochs, seeds=options.seeds, jobs=options.jobs)
    if options.minutes is not None and not options.minutes > 0:
        raise UserError(f"--minutes must be positive, got {options.minutes:g}.")
    scale, console = Scale(options.epochs, options.seeds, options.only), Console()
    if options.list:
        return _list(options, scale, console)
    if not options.names:
        raise UserError("`vje reproduce` needs to know what: a name such as nu-sweep. `vje reproduce --list` has them.")
    experiments = [load_experiment(name) for name in dict.fromkeys(options.names)]
    _check_only(experiments, scale)
    if options.dry_run:
        for experiment in experiments:
            jobs = plan(experiment, scale, options.out, options.data_dir)
            _print_plan(experiment, jobs, options.out, scale, console)
        jobs = plan_all(experiments, scale, options.out, options.data_dir)
        _print_missing_sets(jobs, options, console)
        _print_estimate(jobs, options, console)
        return 0
    return _make(experiments, options, scale, console)


def _check_only(experiments: "Sequence[Experiment]", scale: Scale) -> None:
    """Refuse a data set that no table has runs of."""
    cells = [cell for experiment in experiments for cell in experiment.every_cell()]
    known = dict.fromkeys(data for cell in cells for data in _data(cell, scale))
    for name in scale.only:
        if name not in known:
            names = ", ".join(experiment.name for experiment in experiments)
            raise UserError(f"--only {name}: {names} has no such runs; its data sets: {', '.join(known) or 'none'}.")


def _data(cell: Cell, scale: Scale) -> list[str]:
    """Names of the images of a cell's runs; the first to look at its recipe, where the cell has epochs of its own."""
    try:
        return [run.data() for run in scale.runs(cell)]
    except UserError as error:
        raise UserError(f"{cell.where}: {error}") from None


def _make(experiments: "Sequence[Experiment]", options: Options, scale: Scale, console: "Console") -> int:
    from vje.experiments.execute import Runner, can_profile, profile
    from vje.experiments.write import write

    def planned() -> list[Job]:
        return plan_all(experiments, scale, options.out, options.data_dir, thorough=True)

    if options.table_only and not options.out.is_dir():
        raise UserError(f"--table-only makes tables of runs that are there, and there is no folder {options.out}.")
    jobs = planned()
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(f"to {options.out}", error, "choose another --out") from None
    runner = Runner(jobs, options.data_dir, options.jobs, console, options.minutes, planned)
    if not options.table_only:
        _print_obstacles(jobs, console)
        _print_missing_sets(jobs, options, console)
        for job in jobs:
            if job.state == "diverged":
                say(console, _diverged(job), "yellow")
        runner()
        profiled = any(experiment.reads("profile") for experiment in experiments)
        if profiled and not runner.stopped and can_profile(options.out):
            trouble = profile(options.out, console)
            runner.failures |= {"profile": trouble} if trouble else {}
    for experiment in experiments:
        jobs = plan(experiment, scale, options.out, options.data_dir, thorough=True)
        try:
            files = write(experiment, scale, jobs, runner.failures, options.out, console, options.note)
        except UserError as error:  # other tables are written all the same
            print(f"vje: {error}", file=sys.stderr)
            runner.failures[experiment.name] = str(error)
        else:
            print(f"Written to {' and '.join(map(str, files))}")
    if runner.stopped:
        print("Stopped; nothing finished is lost. The same command goes on from there.")
        return 130
    return 1 if runner.failures else 0


def _print_plan(experiment: Experiment, jobs: list[Job], out: Path, scale: Scale, console: "Console") -> None:
    scaled = scale.label(experiment)
    say(console, f"{experiment.name}: {experiment.about}" + (f" [{scaled}]" if scaled else ""), "bold")
    for job in jobs:
        state = job.state if job.state != "interrupted" else f"unfinished ({job.folder.progress()})"
        todo = "left out" if job.obstacle else ", then ".join(job.steps) or "nothing to do"
        line = _diverged(job) if job.state == "diverged" else f"{job.run.name}: {state}; {todo}"
        say(console, f"  {line}", "" if job.steps else "dim")
    if experiment.reads("profile"):
        counted = "counted; a GPU adds speed and memory"
        todo = {"missing": "vje profile", "counted": counted, "measured": "there"}[profile_state(out)]
        say(console, f"  profile: {todo}")
    _print_obstacles(jobs, console)


def _print_estimate(jobs: list[Job], options: Options, console: "Console") -> None:
    seconds, assumed = estimate(jobs, options.out)
    left = sum("train" in job.steps and not job.obstacle for job in jobs)
    together, needed = min(options.jobs, left), ""
    if left:
        share = f", {together} side by side between {duration(seconds / together)} (if none slows another) and that"
        needed = f": about {duration(seconds)} one after another{share if together > 1 else ''}, "
        needed += "without starting up and evaluations"
    say(console, f"{left} of {len(jobs)} runs to train{needed}.")
    if assumed:
        say(
            console,
            f"Speeds are of finished runs in {options.out}, but assumed for want of them for "
            f"{', '.join(sorted(assumed))} (one H200; 30,000 images/s on CIFAR, a guess for larger images; "
            "a CPU takes far longer).",
            "dim",
        )


def _print_obstacles(jobs: list[Job], console: "Console") -> None:
    for obstacle in dict.fromkeys(job.obstacle for job in jobs if job.obstacle):
        count = sum(job.obstacle == obstacle for job in jobs)
        say(console, f"{count} runs are left out: {obstacle}.", "yellow")


def _print_missing_sets(jobs: list[Job], options: Options, console: "Console") -> None:
    for line in missing_sets(jobs, options.data_dir):
        say(console, line, "yellow")


def _diverged(job: Job) -> str:
    again = command("vje", "train", "--resume", job.folder.path)
    return f"{job.run.name}: {divergence(job.folder)} and not trained again; to try: {again}"


def _list(options: Options, scale: Scale, console: "Console") -> int:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, pad_edge=False)
    for title in ("name", "what it is", "needs", "made so far", "written"):
        table.add_column(title, no_wrap=title == "name")
    for name in options.names or experiment_names():
        experiment = load_experiment(name)
        table.add_row(experiment.name, experiment.about, *_progress(experiment, options, scale))
    type(console)(width=max(130, console.width)).print(table)  # a narrow window wraps lines, a narrow table words
    print("vje reproduce NAME makes one; --dry-run tells what that takes; --epochs and --seeds make it smaller.")
    there = any(any(options.out.glob(pattern)) for pattern in ("*.json", "*/config.json"))
    print(f"Looked in {options.out}" + ("." if there else ", where nothing was found; --out FOLDER looks elsewhere."))
    return 0


def _progress(experiment: Experiment, options: Options, scale: Scale) -> tuple[str, str, str]:
    """What a table needs, how much of that there is, and what was written of it."""
    written = _written(experiment.name, options.out)
    if experiment.reads("profile"):
        made = {"missing": "0 of 1", "counted": "counted, not measured", "measured": "1 of 1"}
        return "a GPU for speed and memory", made[profile_state(options.out)], written
    try:
        jobs = plan(experiment, scale, options.out, options.data_dir)
    except UserError as error:
        return "", str(error), written
    data = ", ".join(dict.fromkeys(job.run.data() for job in jobs))
    done = sum(not job.steps for job in jobs)
    return data or "nothing", f"{done} of {len(jobs)} runs" if jobs else "", written


def _written(name: str, out: Path) -> str:
    """How much of a table was written: of the whole one, or else of the smaller ones."""
    from vje.runs import read_json

    scale = re.compile(r"(_e\d+)?(_s\d+)?")
    files = [file for file in sorted(out.glob(f"{name}*.json")) if scale.fullmatch(file.stem.removeprefix(name))]
    whole = out / f"{name}.json"
    try:
        records = [read_json(file) for file in ([whole] if whole in files else files)]
    except UserError as error:
        return str(error)
    return "; ".join(", ".join(filter(None, [x.get("scaled"), _lacking(x)])) or "whole" for x in records)


def _lacking(record: dict[str, Any]) -> str:
    """How much of a table is there, in words; empty if all is: runs that diverged are no less."""
    made = record.get("made", {"wanted": 0})
    there = len([*made.get("runs", ()), *made.get("diverged", ())])
    if there < made["wanted"]:
        return f"{there} of {made['wanted']} runs"
    cells = [cell for row in record.get("rows", ()) for cell in row["cells"] if "quoted" not in cell]
    filled = sum(bool(cell["ours"]) or "diverged" in cell for cell in cells)
    return f"{filled} of {len(cells)} cells" if filled < len(cells) else ""
