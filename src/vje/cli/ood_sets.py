"""The images of ``vje ood``: what was asked for, opened, and without what the run was trained on."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from vje.cli.embed import open_images
from vje.cli.subject import run_config
from vje.config import Config
from vje.data.registry import check_data
from vje.data.sources import ImageSource
from vje.data.splits import Splits
from vje.errors import UserError, command
from vje.ood.benchmark import BENCHMARKS, Member, benchmark_name, find_sets, id_images
from vje.ood.unseen import unseen
from vje.runs import RunFolder

if TYPE_CHECKING:
    from vje.cli.ood import Options

FEW = 50
"""In-distribution images from which on nothing is said of their number."""
RESERVED = ("id", "bank", "tuning", "near", "far", "avg")
"""Names that sets of one's own cannot have."""


@dataclass(frozen=True)
class Sets:
    """What is told from what."""

    bank: ImageSource | None  # the run's training images; None if they are not at hand, nor needed
    inside: ImageSource  # in-distribution images, which the run was not trained on
    members: Sequence[Member]  # the sets to tell from them
    # (in-distribution, other) images to choose hyper-parameters on; None if there are none
    validation: tuple[ImageSource, ImageSource] | None = None
    notes: Sequence[str] = ()  # lines on what is not at hand, or left out
    held_out: bool = False  # whether the in-distribution images are those that the run held out itself

    def fingerprints(self) -> dict[str, list[str]]:
        """Of everything that a result depends on."""
        sets: dict[str, Sequence[ImageSource]] = {"bank": [self.bank] if self.bank else [], "id": [self.inside]}
        sets["tuning"] = self.validation or ()
        sets |= {member.name: member.sources for member in self.members}
        return {name: [source.fingerprint() for source in sources] for name, sources in sets.items()}

    def images(self) -> dict[str, str]:
        """Identifies the in-distribution images and each set, whatever the run was trained on."""
        prints = self.fingerprints()
        wanted = ("id", *(member.name for member in self.members))
        return {name: blake2b(" ".join(prints[name]).encode(), digest_size=8).hexdigest() for name in wanted}


def check_asked(folder: RunFolder, options: "Options") -> None:
    """Refuse what cannot be measured as far as names tell, without torch."""
    stored = folder.read("config").get("data", {})
    if options.id is None:
        benchmark_of(options.data or str(stored.get("data", "")))
        return

    data_dir = options.data_dir or Path(stored.get("data_dir", "data"))
    for images in (options.id, *named_sets(chain(*options.ood)).values()):
        if not Path(images).exists():
            check_data(images, data_dir)


def check_same_images(folders: Sequence[RunFolder], options: "Options") -> None:
    """Refuse to average runs that would meet different images, unless each meets those that it held out itself."""
    found = [open_sets(each, run_config(each, options.data, options.data_dir), options).images() for each in folders]
    held_out = [each.read("data").get("held_out") for each in folders]
    own = False
    for folder, images, mine in zip(folders[1:], found[1:], held_out[1:], strict=True):
        apart = [name for name in {**found[0], **images} if found[0].get(name) != images.get(name)]
        if apart == ["id"] and mine and held_out[0] and mine != held_out[0]:
            own = True
        elif apart:
            names = ", ".join("in-distribution" if name == "id" else name for name in apart)
            remedy = "take all of them from one place with --data-dir PATH or --data PATH"
            if options.id is not None:
                remedy = "give an --id that none of the runs was trained on"
            raise UserError(
                f"{folders[0].path} and {folder.path} would be measured on different images ({names}), and a mean over "
                f"them would say nothing: {remedy}, or run `vje ood` on each."
            )
    if own:
        print("Each run is measured on the images that it held out itself: they are not the same for all.")


def named_sets(words: Iterable[str]) -> dict[str, str]:
    """The sets of --ood by name.

    >>> named_sets(["noise=data/noise", "x=a=b"])
    {'noise': 'data/noise', 'x': 'a=b'}
    """
    sets: dict[str, str] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not (name and equals and path):
            raise UserError(f"--ood {word}: write it as NAME=PATH.")
        if name in (*RESERVED, *sets):
            raise UserError(f"--ood {word}: the name {name} is taken; choose another.")
        sets[name] = path
    return sets


def benchmark_of(data: str) -> str:
    """The benchmark for runs on a data set."""
    name = benchmark_name(data)
    if name is None:
        raise UserError(
            f"there is no benchmark for a run on {data} (there are {', '.join(BENCHMARKS)}): say what to compare with "
            "--id PATH --ood NAME=PATH."
        )
    return name


def open_sets(folder: RunFolder, config: Config, options: "Options") -> Sets:
    """Open what was asked for, or the sets of the benchmark that are at hand."""
    from vje.build_data import open_splits

    data_dir = config.data.data_dir
    splits: Splits | None
    if options.id is None:
        splits = open_splits(config.data, folder.read("data"))
        return _benchmark(benchmark_of(config.data.data), data_dir, splits)
    given = named_sets(chain(*options.ood))
    notes = []
    try:
        splits = open_splits(config.data, folder.read("data"))
    except UserError as error:
        if options.detectors:
            words = "detectors are fitted on the images that the run was trained on; without them: --no-detectors"
            raise UserError(f"{error}\n({words})") from None
        notes.append(f"The images that {folder.path} was trained on are not at hand: see that --id holds none of them.")
        splits = None
    members = [Member(name, None, (open_images((path,), None, data_dir, tell=False),)) for name, path in given.items()]
    inside = open_images((options.id,), None, data_dir, tell=False)
    unseen = _without_trained(folder, inside, splits, options.id, config.data.data)
    own = unseen is not inside and set(unseen.names) <= set(folder.read("data").get("held_out") or ())
    if unseen is not inside:
        which = f"those that {folder.path} held out" if own else f"on which {folder.path} was not trained"
        notes.append(f"--id {options.id}: {len(unseen):,} of its images are used, {which}.")
    if len(unseen) < FEW:
        notes.append(f"--id {options.id}: {len(unseen)} images are few, and the figures as rough.")
    notes += [note for member in members for note in _doubtful(member, unseen, folder, splits)]
    return Sets(None if splits is None else splits.bank, unseen, members, notes=notes, held_out=own)


def _doubtful(member: Member, inside: ImageSource, folder: RunFolder, splits: Splits | None) -> Iterator[str]:
    """What makes a set look less unlike the in-distribution images than it may be meant to."""
    (source,) = member.sources
    if source.fingerprint() == inside.fingerprint():
        yield f"--ood {member.name}: these are the images of --id."
    known = len(source) - len(unseen(source, folder.read("data"), splits))
    if known:
        yield f"--ood {member.name}: {folder.path} was trained on {known:,} of its {len(source):,} images."


def missing_sets(benchmark: str, members: Sequence[Member]) -> dict[str, list[str]]:
    """Sets of the protocol that are not at hand, in each group that lacks any: its mean is not the protocol's."""
    there = {member.name for member in members}
    groups: dict[str, list[str]] = {}
    for wanted in BENCHMARKS[benchmark]:
        if wanted.name not in there:
            groups.setdefault("near" if wanted.near else "far", []).append(wanted.name)
    return groups


def _benchmark(benchmark: str, data_dir: Path, splits: Splits) -> Sets:
    validation, inside = id_images(benchmark, splits.test)
    members, missing, tuning = find_sets(benchmark, data_dir)
    if not members:
        print("\n".join(missing))
        raise UserError(f"none of the benchmark's data sets is in {data_dir}; see above for how to get them.")
    return Sets(splits.bank, inside, members, (validation, tuning) if validation and tuning else None, missing)


def _without_trained(
    folder: RunFolder, source: ImageSource, splits: Splits | None, given: str, data: str
) -> ImageSource:
    """The in-distribution images that the run was not trained on: with the others its figures would be too good."""
    places = unseen(source, folder.read("data"), splits)
    if not len(places):
        raise UserError(
            f"--id {given}: {folder.path} was trained on these images, and the figures would be too good. Give "
            f"images that it was not trained on; `{command('--id', data)}` takes those that it held out."
        )
    return source if len(places) == len(source) else source.subset(places)
