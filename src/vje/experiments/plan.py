"""What a table or figure still needs: where each of its runs stands, by its folder, and what is left to do."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vje.config import changed_fields, stored_config
from vje.data.registry import check_data
from vje.errors import UserError
from vje.experiments import Cell, Experiment
from vje.experiments.check import PICTURES
from vje.experiments.grid import PYTHON, Run, Scale, data_option, method_of
from vje.experiments.usual import unusual
from vje.ood.benchmark import BENCHMARKS, benchmark_name
from vje.runs import COMMANDS, Damaged, RunFolder, read_json


@dataclass(frozen=True)
class Job:
    """A run with its folder, and what is left to do."""

    run: Run  # what to make
    folder: RunFolder  # where
    state: str  # "missing", "interrupted", "diverged", "damaged" or "finished"
    steps: tuple[str, ...]  # commands to give, in order: train, then evaluations
    obstacle: str = ""  # why that cannot be done here; empty if it can

    def command(self, step: str, data_dir: Path | None) -> list[str]:
        """A step's command line."""
        if step == "train":
            return self.run.train(self.folder.path, data_dir)
        return [*PYTHON, step, str(self.folder.path), *data_option(data_dir)]


def plan(experiment: Experiment, scale: Scale, out: Path, data_dir: Path | None, thorough: bool = False) -> list[Job]:
    """The runs that a table or figure needs, each once.

    Args:
        experiment: what to make.
        scale: how much of it.
        out: folder of the runs.
        data_dir: where data sets are; None for the recipes' own folder.
        thorough: look at the settings of other methods' runs too, which imports torch.
    """
    wanted: dict[Run, dict[str, None]] = {}
    for cell in experiment.every_cell():
        commands = [COMMANDS[file] for file in cell.files() if file in COMMANDS]
        commands += [PICTURES[experiment.picture]] if experiment.kind == "picture" else []
        if "geometry" in commands and method_of(cell.recipe) != "vje":
            raise UserError(
                f"{cell.where}: `vje geometry` is for VJE runs, and recipe {cell.recipe} is of another method."
            )
        for run in _runs(cell, scale, thorough):
            wanted.setdefault(run, {}).update(dict.fromkeys(commands))
    _check_names(wanted)
    return [
        _job(run, tuple(commands), out / run.name, data_dir, scale.only, thorough, experiment.picture)
        for run, commands in wanted.items()
    ]


def _runs(cell: Cell, scale: Scale, thorough: bool) -> list[Run]:
    """A cell's runs; settings that training would refuse are refused here, before anything is trained."""
    try:
        runs = scale.runs(cell)
        if runs and (thorough or method_of(cell.recipe) == "vje"):
            runs[0].config()  # the others differ in their seeds alone
    except UserError as error:
        raise UserError(f"{cell.where}: {error}") from None
    return runs


def plan_all(
    experiments: Sequence[Experiment], scale: Scale, out: Path, data_dir: Path | None, thorough: bool = False
) -> list[Job]:
    """The runs that several tables need, each once, with everything that any of them has left to do on it."""
    jobs: dict[str, Job] = {}
    planned = [job for experiment in experiments for job in plan(experiment, scale, out, data_dir, thorough)]
    _check_names(job.run for job in planned)
    for job in planned:
        known = jobs.get(job.run.name)
        steps = job.steps if known is None else tuple(dict.fromkeys((*known.steps, *job.steps)))
        obstacle = job.obstacle or ("" if known is None else known.obstacle)
        jobs[job.run.name] = dataclasses.replace(job, steps=steps, obstacle=obstacle)
    return list(jobs.values())


def _check_names(runs: Iterable[Run]) -> None:
    """Refuse runs that differ and would have the same folder."""
    known: dict[str, Run] = {}
    for run in runs:
        other = known.setdefault(run.name, run)
        if other != run:
            raise UserError(
                f"two runs would both be called {run.name}: one with {_apart(other, run)}, one with "
                f"{_apart(run, other)}. Names have the last part of a path: rename a folder or file."
            )


def _apart(run: Run, other: Run) -> str:
    """What a run has and another has not."""
    recipe = [("recipe", run.recipe)] if run.recipe != other.recipe else []
    options = [option for option in run.options if option not in other.options]
    return ", ".join(f"{name} {value}" for name, value in (*recipe, *options))


def _job(
    run: Run,
    commands: tuple[str, ...],
    path: Path,
    data_dir: Path | None,
    only: tuple[str, ...],
    thorough: bool,
    picture: str = "",
) -> Job:
    folder = RunFolder(path)
    try:
        state = state_of(folder, run.epochs)
        if state != "missing":
            _check_same(run, folder, thorough)
    except Damaged as error:
        return Job(run, folder, "damaged", (), f"{str(error).rstrip('.')}; move {path} away to train it anew")
    files = {command: file for file, command in COMMANDS.items()}
    drawn = not picture or (path / picture).exists()
    left = tuple(c for c in commands if state != "finished" or not drawn or not is_fresh(folder, files[c]))
    steps = {"finished": left, "diverged": ()}.get(state, ("train", *left))
    obstacle = ""
    if steps and state == "finished" and is_record(folder):
        obstacle = "only their records were kept, and measuring more needs their weights"
    elif steps and only and run.data() not in only:
        obstacle = f"their data sets are not among --only {' '.join(only)}"
    elif steps:
        try:
            check_data(run.data(), run.data_dir(data_dir), "--data-dir", training="train" in steps)
        except UserError as error:
            obstacle = str(error)
    return Job(run, folder, state, steps, obstacle)


def missing_sets(jobs: Sequence[Job], data_dir: Path | None) -> list[str]:
    """A line for each benchmark's out-of-distribution sets that ``vje ood`` will look for and not find."""
    places = {
        (benchmark_name(job.run.data()) or "", job.run.data_dir(data_dir))
        for job in jobs
        if "ood" in job.steps and not job.obstacle
    }
    lines = []
    for benchmark, place in sorted(places):
        absent = [wanted for wanted in BENCHMARKS.get(benchmark, ()) if not _is_there(wanted.name, place)]
        if absent:
            words = ", ".join(f"{wanted.name} ({wanted.source})" for wanted in absent)
            lines.append(
                f"vje ood of {benchmark} runs will lack sets that are not in {place}, and their averages: {words}."
            )
    return lines


def _is_there(data: str, data_dir: Path) -> bool:
    try:
        check_data(data, data_dir)
    except UserError:
        return False
    return True


def state_of(folder: RunFolder, epochs: int) -> str:
    """Whether a run is missing, interrupted, diverged or finished."""
    if not folder.config_file.exists():
        return "missing"
    failed, whole = (folder.path / "failed.json").exists(), folder.epochs_done() >= epochs
    if folder.model_file.exists() or (whole and is_record(folder) and not failed):
        return "finished"
    return "diverged" if failed else "interrupted"


def is_record(folder: RunFolder) -> bool:
    """Whether only the records of a run were kept: neither its model nor the folder of checkpoints.

    That folder, empty or not, is there from the beginning of a run; git keeps no empty ones.
    """
    return not folder.model_file.exists() and not folder.checkpoints.is_dir()


def divergence(folder: RunFolder) -> str:
    """What became of a run that diverged, in words."""
    return f"diverged at step {folder.read('failed')['step']}"


def profile_state(out: Path) -> str:
    """Whether the computational profile is missing, counted (without speed and memory) or measured."""
    file = out / "profile.json"
    if not file.exists():
        return "missing"
    methods = read_json(file)["methods"].values()
    return "measured" if all(row.get("relative_throughput") is not None for row in methods) else "counted"


def is_fresh(folder: RunFolder, file: str) -> bool:
    """Whether a run's evaluation is there, with the usual settings, and that of its model as it is now."""
    path = folder.path / f"{file}.json"
    try:
        if not path.exists() or unusual(folder, file) or (file == "ood" and not _of_the_benchmark(folder)):
            return False
        return not folder.superseded(file)
    except Damaged:
        return False


def _of_the_benchmark(folder: RunFolder) -> bool:
    """Whether a run's OOD results are of the sets for its data, not of images of somebody's own."""
    data = stored_config(folder).data.data
    return bool(folder.read("ood").get("data", data) == data)


def _check_same(run: Run, folder: RunFolder, thorough: bool) -> None:
    """Refuse a folder that holds a run of other settings."""
    method = folder.read("config").get("method")
    expected = method_of(run.recipe)
    if method != expected:
        differences = {"method": (method, expected)}
    elif expected != "vje" and not thorough:
        return
    else:
        changes = changed_fields(stored_config(folder), run.config())
        differences = {name: (old, new) for name, (old, new, free) in changes.items() if not free}
    if differences:
        found = ", ".join(f"{name} {old} where {new} is wanted" for name, (old, new) in differences.items())
        raise UserError(
            f"{folder.path} holds a run of other settings ({found}), perhaps of another version of the recipe. "
            "Move it away, or choose another --out."
        )
