"""``vje ood RUN...``: the OpenOOD v1.5 benchmark, or sets of one's own, for every score."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from vje.cli.checks import at_least, check_writable
from vje.cli.ood_run import measure
from vje.cli.ood_sets import check_asked, check_same_images
from vje.cli.subject import Batch, Device, Workers
from vje.config import stored_config
from vje.errors import UserError, command
from vje.ood.names import chosen, title
from vje.reporting.compare import differences
from vje.reporting.ood_columns import partial_sets
from vje.runs import RunFolder, distinct, repeated_seeds, write_json
from vje.terminal import print_columns


@dataclass(frozen=True)
class Options:
    """Out-of-distribution detection: AUROC, AUPR and FPR@95 of every score on every set.

    A run trained on CIFAR-10 or CIFAR-100 is put through the OpenOOD v1.5 protocol with the sets found in --data-dir;
    any run can be tried on images of your own with --id and --ood. Several runs give mean and standard deviation; they
    must be of one method, on the same data, and measured on the same images. Results go to RUN/ood.json, with figures
    beside it; earlier ones on other images are kept in RUN/ood-earlier.
    """

    runs: tyro.conf.Positional[Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN")]]
    """Run folders."""
    data_dir: Path | None = None
    """Where the data sets are; the default is where they were in training."""
    data: str | None = None
    """Name, folder or .npz that the runs were trained on, if it has moved."""
    id: str | None = None
    """In-distribution images that the run did not train on: a folder, an .npz, or a name. Of the data that it was
    trained on, the images that it held out are taken."""
    ood: Annotated[tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction] = ()
    """Other images, each as NAME=PATH."""
    samples: int = 0
    """Monte-Carlo samples of the sampled NLL; 0 leaves it out."""
    views: Literal["one", "mirror", "ten"] | None = None
    """Score more of each image too, and add the means as NAME_VIEWS: mirror is the image and its mirror image; ten is
    crops at the centre and the corners and their mirror images, ten times the work; one adds nothing. The default is
    what the run's recipe says (--ood-views in training)."""
    detectors: bool = True
    """Fit the detectors on training features too."""
    out: Path | None = None
    """File for the mean over several runs (JSON)."""
    device: Device = "auto"
    batch: Batch = 500
    workers: Workers = 8


def run(arguments: list[str]) -> int:
    """Run the benchmark on each run, write ``RUN/ood.json`` and figures, print a table."""
    options = tyro.cli(Options, args=arguments, prog="vje ood")
    if not options.runs:
        raise UserError("`vje ood` needs a run folder, such as runs/cifar10-ema.")
    if bool(options.id) != any(options.ood):
        raise UserError("--id and --ood go together: what is in-distribution, and what is not.")
    at_least(0, samples=options.samples, workers=options.workers)
    at_least(1, batch=options.batch)
    if options.out is not None and len(options.runs) == 1:
        raise UserError("--out is for the mean over several runs; the result of one is in RUN/ood.json.")
    folders = distinct(RunFolder.open(path) for path in options.runs)
    for folder in folders:
        check_asked(folder, options)
        check_writable(folder.path, "ood")
    differing = _check_alike(folders)
    if len(folders) > 1:
        check_same_images(folders, options)
    options = replace(options, views=options.views or stored_config(folders[0]).run.ood_views)
    results = [measure(folder, options) for folder in folders]
    _print(results, folders)
    for line in differing + repeated_seeds(zip((r["seed"] for r in results), folders, strict=True)):
        print(line)
    if len(results) > 1:
        from vje.ood.protocol import mean_and_std

        merged = mean_and_std([{k: r[k] for k in ("scores", "summary")} for r in results])
        if options.out is not None:
            write_json(options.out, merged | {"runs": [str(f.path) for f in folders], "counts": results[0]["counts"]})
            print(f"Mean and standard deviation written to {options.out}")
    return 0


def _check_alike(folders: list[RunFolder]) -> list[str]:
    """Refuse to average runs of several methods or data sets; returns lines on other settings that differ."""
    configs = [stored_config(folder) for folder in folders]
    lines = []
    for folder, config in zip(folders[1:], configs[1:], strict=True):
        for what, one, other in (
            ("method", configs[0].method, config.method),
            ("data", configs[0].data.data, config.data.data),
        ):
            if one != other and not (what == "data" and _same_images(folders[0], folder)):
                side_by_side = command("vje", "compare", *(each.path for each in folders))
                raise UserError(
                    f"{folders[0].path} and {folder.path} are of different {what} ({one} and {other}), and a mean over "
                    f"them would say nothing: run `vje ood` on each, and put them side by side with `{side_by_side}`."
                )
        found = {name: value for name, value in differences(configs[0], config).items() if name != "data"}
        if found:
            words = ", ".join(f"{name} {value}" for name, value in found.items())
            lines.append(f"The settings differ: {folder.path} has {words}, unlike {folders[0].path}")
    return lines


def _same_images(one: RunFolder, other: RunFolder) -> bool:
    """Whether two runs trained on the same images, which may have been in two places."""
    prints = [folder.read("data").get("fingerprint") for folder in (one, other)]
    return bool(prints[0]) and prints[0] == prints[1]


def _print(results: list[dict[str, Any]], folders: list[RunFolder]) -> None:
    """AUROC of every score on every set."""
    from vje.ood.protocol import mean_and_std

    first = results[0]
    several = len(results) > 1
    merged = mean_and_std([{k: r[k] for k in ("scores", "summary")} for r in results])

    def cell(leaf: dict[str, float]) -> str:
        return f"{leaf['mean']:.1f} ± {leaf['std']:.1f}" if several else f"{leaf['mean']:.1f}"

    sets = [name for name in first["counts"] if name != "id"]
    groups = [name for name in ("near", "far", "avg") if name in next(iter(first["summary"].values()))]
    mark = "*" if "id" in first["partial"] else ""
    above = f"AUROC (%), in-distribution {first['data']}{mark} ({first['counts']['id']:,} images)"
    heads = ["score"]
    heads += [f"{name}{'*' * (name in first['partial'])}\n{first['counts'][name]:,}" for name in sets]
    missing = first.get("missing", {})
    heads += [f"{name}†" if name in missing or (name == "avg" and missing) else name for name in groups]
    rows = [
        [
            title(score, first.get("classifier")),
            *(cell(values[name]["auroc"]) for name in sets),
            *(cell(merged["summary"][score][g]) for g in groups),
        ]
        for score, values in merged["scores"].items()
    ]
    print_columns(heads, rows, f"{above}, {len(results)} runs" if several else above)
    if first["partial"]:
        print(f"* not the protocol's own image list (other counts): {', '.join(partial_sets(first).values())}")
    if missing:
        print(f"† not the protocol's mean: without {', '.join(x for names in missing.values() for x in names)}")
    if first["tuned"]:
        print(f"chosen on validation images: {_said(first['tuned'])}")
    if first.get("usual"):  # which earlier versions did not record
        print(f"the usual values, not chosen on validation images: {_said(first['usual'])}")
    for folder in folders:
        print(f"Written to {folder.path / 'ood.json'}, with figures (ood-*.png) beside it")


def _said(values: Mapping[str, float]) -> str:
    """Hyper-parameters of detectors, for people."""
    return ", ".join(chosen(name, value) for name, value in values.items())
