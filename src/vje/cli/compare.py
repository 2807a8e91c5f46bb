"""``vje compare RUN...``: one table and one figure across runs, methods and seeds."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from vje.cli.checks import check_parent, of_known_methods, open_runs
from vje.errors import UserError
from vje.reporting.compare import group_runs, read_runs, save_comparison
from vje.reporting.compare_table import footnotes, heads, rows
from vje.reporting.written import check_own, is_picture, is_record
from vje.runs import write_json
from vje.terminal import print_columns


@dataclass(frozen=True)
class Options:
    """Compare runs: k-NN, linear probe, out-of-distribution detection and speed, and k-NN over epochs.

    Runs that differ in their seeds alone are put together, as mean and standard deviation. What is shown was measured
    before, by `vje train`, `vje evaluate`, `vje probe` and `vje ood`; what was not measured, or of other weights than
    the run's model, or an average without some of its sets, or over runs that met different images, stays empty. Sets
    of your own that were given to `vje ood` are shown if they hold the same images for every run, or each run was
    measured on the images that it held out itself. Variance and KL are of VJE's posterior; those of a method with
    another prior have a column of its own. Runs that are unfinished, or diverged, are marked, and so are columns with
    sets that are not the protocol's own.
    """

    runs: tyro.conf.Positional[Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN")]]
    """Run folders; of several paths, those that are none are passed over."""
    out: Path = Path("comparison")
    """Where to write: OUT.png and OUT.json. Only a picture and a record that vje wrote are replaced."""


def run(arguments: list[str]) -> int:
    """Read the runs, print the table, write table and figure."""
    options = tyro.cli(Options, args=arguments, prog="vje compare")
    if not options.runs:
        raise UserError("`vje compare` needs run folders, such as runs/cifar10-ema runs/cifar10-simsiam.")
    picture, record = _files(options.out)

    groups = group_runs(read_runs(of_known_methods(open_runs(options.runs))))
    print_columns([title.replace(" (", "\n(") for title in heads(groups)], rows(groups))
    for note in footnotes(groups):
        print(note)
    save_comparison(picture, groups)
    entries = [
        {
            "name": group.name,
            "method": group.runs[0].config.method,
            "epochs": group.runs[0].config.optimizer.epochs,
            "runs": [str(run.folder.path) for run in group.runs],
            "epochs_done": [run.config.optimizer.epochs if run.done is None else run.done for run in group.runs],
            "diverged": [run.diverged for run in group.runs],
            "seeds": [run.config.run.seed for run in group.runs],
            "values": group.summary(),
            "partial": group.partial(),
            "notes": group.notes(),
        }
        for group in groups
    ]
    write_json(record, {"groups": entries})
    print(f"k-NN is of the last epoch, in percent; speeds are medians over epochs. Written to {picture} and {record}")
    return 0


def _files(out: Path) -> tuple[Path, Path]:
    """The picture and the record to write."""
    if out.name in ("", ".."):
        raise UserError(f"--out {out} is a folder: name what to write, such as {out / 'comparison'}.")
    ending = out.suffix.lower()
    if ending[1:].isalpha() and ending not in (".png", ".json"):  # other dots are part of a name, as in lr0.1
        raise UserError(f"--out {out}: a .png and a .json are written; end it in one of these, or in nothing.")
    place = out.with_suffix("") if ending in (".png", ".json") else out
    picture, record = (place.with_name(f"{place.name}{kind}") for kind in (".png", ".json"))
    check_parent("--out", out)
    check_own(picture, is_picture, "picture")
    check_own(record, is_record, "record of a comparison")
    return picture, record
