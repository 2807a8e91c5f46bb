"""The comparison as a table: what stands in its cells, above its columns and below it."""

from collections.abc import Mapping, Sequence

from vje.reporting.compare import DIVERGED, MARK, Group, apart_notes

UNFINISHED = f"{MARK} unfinished: epochs done of all, and values that are not final"
DIGITS = {"variance": 3, "KL": 1, "rank of z": 1}
"""After the point, where it is not two; by the title, less what is in brackets."""
KINDS: tuple[str | tuple[str, ...], ...] = (
    "accuracy",
    "k-NN",
    "probe",
    "variance",
    "KL",
    "rank of z",
    ("near OOD", "far OOD", "OOD"),
    "images/s",
    "",
)
"""How the titles of each kind of column begin, in the order of the table."""
PARTIAL = f"{MARK} not the protocol's own image list (other counts)"


def cell(value: Mapping[str, float] | None, column: str) -> str:
    """A column of a :meth:`Group.summary` for the table; marked if it is not final, or not of all runs.

    >>> cell({"mean": 81.5, "std": 0.25, "runs": 2, "of": 3, "unfinished": 1, "diverged": 0}, "k-NN z")
    '81.50 ± 0.25* (2 of 3)'
    """
    if value is None:
        return ""
    some = f" ({value['runs']} of {value['of']})" if value["runs"] < value["of"] else ""
    if column == "images/s":
        return f"{value['mean']:,.0f}{some}"
    digits = DIGITS.get(column.partition(" (")[0], 2)
    text = f"{value['mean']:.{digits}f}" + (f" ± {value['std']:.{digits}f}" if value["runs"] > 1 else "")
    return text + (MARK if value["unfinished"] else "") + (DIVERGED if value["diverged"] else "") + some


def heads(groups: Sequence[Group]) -> list[str]:
    """What stands above each column: its name, with a mark if some sets are not the protocol's own."""
    marked = {name for group in groups for name in group.partial()}
    return ["run", "runs", "epochs", *(f"{name}{MARK}" if name in marked else name for name in _columns(groups))]


def rows(groups: Sequence[Group]) -> list[list[str]]:
    """The cells below :func:`heads`, a row for each group."""
    columns, found = _columns(groups), [group.summary() for group in groups]
    return [
        [group.name, str(len(group.runs)), group.epochs(), *(cell(values.get(name), name) for name in columns)]
        for group, values in zip(groups, found, strict=True)
    ]


def _columns(groups: Sequence[Group]) -> list[str]:
    """Columns of a kind beside each other, whichever run has them."""
    found = dict.fromkeys(name for group in groups for name in group.summary())
    return sorted(found, key=lambda name: next(i for i, start in enumerate(KINDS) if name.startswith(start)))


def footnotes(groups: Sequence[Group]) -> list[str]:
    """What is said below the table: what is not final or not the protocol's, whose the rows are, what was left out."""
    marks = [UNFINISHED] if any(group.unfinished() for group in groups) else []
    for run in (run for group in groups for run in group.diverged()):
        when = f"at step {run.diverged}, after {run.done} of {run.config.optimizer.epochs} epochs"
        marks.append(f"{DIVERGED} diverged: {run.folder.path}, {when}; its values are from before that")
    notes = [note for group in groups for note in group.own_notes()]
    apart = apart_notes(run for group in groups for run in group.runs)
    return [*marks, *_partial_notes(groups), *_folders(groups), *notes, *apart]


def _folders(groups: Sequence[Group]) -> list[str]:
    """The run folders of each row; not of a row that has the name of its only folder, nor where there is one run."""
    places = [(group.name, [run.folder.path for run in group.runs]) for group in groups]
    if sum(len(paths) for _, paths in places) == 1:
        return []
    told = [(name, paths) for name, paths in places if [path.resolve().name for path in paths] != [name]]
    return [f"{name}: {', '.join(map(str, paths))}" for name, paths in told]


def _partial_notes(groups: Sequence[Group]) -> list[str]:
    """Names the sets that are not the protocol's own; and whose they are, where that is not the same for all."""
    measured = [group for group in groups if any(run.benchmark for run in group.runs)]
    sets = [
        ", ".join(dict.fromkeys(name for names in group.partial().values() for name in names)) for group in measured
    ]
    if len(set(sets)) > 1:
        sets = [f"{names} ({group.name})" for names, group in zip(sets, measured, strict=True) if names]
    return [f"{PARTIAL}: {'; '.join(dict.fromkeys(sets))}"] if any(sets) else []
