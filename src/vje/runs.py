"""The run folder: what is in it, where, and how it is read and written. Importable without torch.

::

    RUN/
      config.json          every setting of the run, with the schema version
      environment.json     versions, device, commit
      data.json            which images were used, held out and skipped
      metrics.jsonl        one line an epoch
      warnings.jsonl       what the alarms said
      failed.json          where training stopped, if the loss was no longer finite
      checkpoints/         the last few states of training
      model.safetensors    the trained model, and model.json, its description
      evaluation.json      what `vje evaluate` found; evaluation-earlier/, with another k
      probe.json           what `vje probe` found; probe-earlier/, with other settings
      geometry.json        what `vje geometry` found, with its figures beside it
      ood.json             what `vje ood` found, with its figures and the curves in ood-curves.json beside it;
                           ood-earlier/, on other images
      report.html          the page that `vje report` makes of it all
      calibration.safetensors    held-out scores that `vje calibrate` keeps for p-values; calibration-earlier/, of
                           other images, or by another score or other views
      cache/               features, by weights and data
      .lock                there while a process trains the run, which it names
"""

import itertools
import json
import math
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from vje.errors import UserError, cannot_write, command

SCHEMA = 1

COMMANDS = {"evaluation": "evaluate", "probe": "probe", "geometry": "geometry", "ood": "ood"}
"""What is measured of a run's model: the command that writes each file, which says with ``weights`` which model."""


class Damaged(UserError):
    """A file of a run that cannot be read as what it should be."""


class Taken(UserError):
    """A folder that cannot be trained in: something else is there, or another process trains in it."""


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run, and access to its small files."""

    path: Path

    @classmethod
    def create(cls, path: Path) -> "RunFolder":
        """Make a new run folder; one that holds a run already is refused."""
        run = cls(path)
        if run.config_file.exists():
            again = f"Continue it with `{command('vje', 'train', '--resume', path)}`, or choose"
            choose = "Choose" if run.model_file.exists() else again
            raise Taken(f"{path} already holds a run ({run.progress()}). {choose} another folder with --out.")
        if path.exists() and not path.is_dir():
            raise Taken(f"{path} is a file, and a run needs a folder: choose another with --out.")
        if path.is_dir() and not _is_free(path):
            raise Taken(f"{path} is not empty and holds no run: choose a new or empty folder with --out.")
        try:
            run.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(f"to {path}", error, "choose another folder with --out") from None
        return run

    @classmethod
    def open(cls, path: str | Path) -> "RunFolder":
        """An existing run folder."""
        run = cls(Path(path))
        if not run.path.exists():
            raise UserError(f"no run at {path}: that path does not exist.{_nearby_runs(run.path)}")
        if not run.config_file.is_file():
            raise UserError(f"{path} is not a run folder: it has no config.json.{_nearby_runs(run.path)}")
        return run

    @property
    def config_file(self) -> Path:
        """Every setting of the run."""
        return self.path / "config.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of training states."""
        return self.path / "checkpoints"

    @property
    def metrics_file(self) -> Path:
        """One JSON object an epoch."""
        return self.path / "metrics.jsonl"

    @property
    def warnings_file(self) -> Path:
        """One JSON object a warning."""
        return self.path / "warnings.jsonl"

    @property
    def model_file(self) -> Path:
        """The trained model's weights; its description is beside it."""
        return self.path / "model.safetensors"

    @property
    def lock_file(self) -> Path:
        """There while a process trains the run, which it names."""
        return self.path / ".lock"

    @property
    def cache(self) -> Path:
        """Folder of cached features; may be deleted at any time."""
        return self.path / "cache"

    def read(self, name: str) -> dict[str, Any]:
        """The JSON object in ``RUN/<name>.json``."""
        return read_json(self.path / f"{name}.json")

    def find(self, name: str) -> dict[str, Any]:
        """The same, empty if it is not there."""
        return self.read(name) if (self.path / f"{name}.json").exists() else {}

    def find_whole(self, name: str) -> dict[str, Any]:
        """The same; a damaged one is moved out of the way, with a word, for the command that makes it anew."""
        try:
            return self.find(name)
        except Damaged as error:
            file = self.path / f"{name}.json"
            place = self.set_aside(file.name, "damaged", blake2b(file.read_bytes()).hexdigest())
            warnings.warn(f"{error} It is in {place} now, and made anew.", stacklevel=2)
            return {}

    def write(self, name: str, value: dict[str, Any]) -> Path:
        """Write ``RUN/<name>.json``, whole or not at all."""
        file = self.path / f"{name}.json"
        write_json(file, value)
        return file

    def set_aside(self, result: str, data: str, key: Any, beside: Sequence[str] = ()) -> Path:
        """Move a result, and files beside it, out of the way of new ones: ``RUN/x.json`` into ``RUN/x-earlier``.

        The result is the last to go: if this is interrupted, the next time does the rest.

        Args:
            result: the name of its file.
            data: that it is on.
            key: which result it is: a later one with the same key takes its place.
            beside: names of files that belong to it; those that are not there are passed over.

        Returns:
            The folder that they are in now.
        """
        place = self.path / f"{Path(result).stem}-earlier" / f"{Path(data).stem or 'images'}-{digest(key)[:8]}"
        try:
            place.mkdir(parents=True, exist_ok=True)
            for file in (self.path / file for file in (*beside, result)):
                if file.exists():
                    file.replace(place / file.name)
        except OSError as error:
            files = f"{result} and its figures" if beside else result
            raise cannot_write(f"to {place}", error, f"move {files} away yourself") from None
        return place

    def metrics(self) -> list[dict[str, Any]]:
        """The epochs recorded so far."""
        return list(_read_lines(self.metrics_file))

    def epochs_done(self) -> int:
        """The last epoch recorded, 0 before the first; lines of earlier ones may be damaged."""
        epochs = [record["epoch"] for record in self.metrics() if isinstance(record.get("epoch"), int)]
        return epochs[-1] if epochs else 0

    def warnings(self) -> list[str]:
        """What the alarms said so far."""
        return [str(record["text"]) for record in _read_lines(self.warnings_file) if "text" in record]

    def append(self, file: Path, record: dict[str, Any]) -> None:
        """Add one line to a ``.jsonl`` file of the run."""
        try:
            with file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(finite(record)) + "\n")
                stream.flush()
                os.fsync(stream.fileno())  # or a power cut could take it, and leave the checkpoint that comes after it
        except OSError as error:
            raise cannot_write(file, error, "move the run elsewhere") from None

    def forget_after(self, step: int) -> None:
        """Drop recorded lines later than ``step``: training goes on from there and will write them again."""
        for file in (self.metrics_file, self.warnings_file):
            if file.exists():
                kept = [record for record in _read_lines(file) if record.get("step", 0) <= step]
                write_atomically(file, "".join(json.dumps(record) + "\n" for record in kept).encode())

    def progress(self) -> str:
        """How far the run got, in words."""
        if self.model_file.exists():
            return "finished"
        epochs = self.epochs_done()
        if not (self.path / "failed.json").exists():
            return f"{epochs} epochs done" if epochs else "no epoch finished yet"
        where = f"diverged at step {self.read('failed')['step']}"
        return f"{where}, {epochs} epochs done" if epochs else f"{where}, in the first epoch"

    def superseded(self, name: str, weights: str | None = None) -> str:
        """Why the result in ``RUN/<name>.json`` is not of the model that is here now, in words; empty if it is.

        Where there is neither a model nor a ``checkpoints`` folder, results are records that were kept, and stand.

        Args:
            name: of the result.
            weights: fingerprint of the model that was loaded; the default is that of the trained one.
        """
        result = self.read(name)
        goes_on = not self.model_file.exists() and self.checkpoints.is_dir()
        if weights is None and goes_on:
            return "from before training went on" if result.get("finished") else ""
        known = {result.get("weights"), weights or self._weights()} - {None}
        return "of other weights than the model" if len(known) > 1 else ""

    def _weights(self) -> str | None:
        """Fingerprint of the trained model's weights, if its description has one."""
        with suppress(UserError, OSError):  # there is none, or it is damaged
            found = self.read("model").get("weights")
            return found if isinstance(found, str) else None
        return None


def distinct(folders: Iterable[RunFolder]) -> list[RunFolder]:
    """The folders, each once, however often and by whatever paths it was given."""
    found: dict[Path, RunFolder] = {}
    for folder in folders:
        found.setdefault(folder.path.resolve(), folder)
    return list(found.values())


def repeated_seeds(runs: Iterable[tuple[int, RunFolder]]) -> list[str]:
    """A line for each seed that several runs have: their mean is over fewer seeds than it seems.

    >>> repeated_seeds([(0, RunFolder(Path("a"))), (1, RunFolder(Path("b"))), (0, RunFolder(Path("c")))])
    ['each counts, though seed 0 is the same: a, c']
    """
    places: dict[int, list[str]] = {}
    for seed, folder in runs:
        places.setdefault(seed, []).append(str(folder.path))
    return [f"each counts, though seed {n} is the same: {', '.join(x)}" for n, x in places.items() if len(x) > 1]


def free_names(path: Path) -> Iterator[Path]:
    """``path``, ``path-2``, ``path-3``, ... without those that are taken.

    >>> next(free_names(Path("surely/nothing/here")))
    PosixPath('surely/nothing/here')
    """
    for number in itertools.count(1):
        candidate = path if number == 1 else path.with_name(f"{path.name}-{number}")
        if not candidate.exists() or (candidate.is_dir() and _is_free(candidate)):
            yield candidate


def _is_free(folder: Path) -> bool:
    """Whether a folder is empty, or has only what a run that ended before it began leaves behind."""
    left = {RunFolder(folder).lock_file, *folder.glob(".config.json.*.partial")}  # by a kill, the config half written
    content = [entry for entry in folder.iterdir() if entry not in left]
    return not content or (
        content == [folder / "checkpoints"] and content[0].is_dir() and not any(content[0].iterdir())
    )


def digest(value: Any) -> str:
    """Identifies a value that JSON can say."""
    return blake2b(json.dumps(value).encode(), digest_size=8).hexdigest()


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object that this package wrote."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{file} is missing.") from None
    except (ValueError, RecursionError) as error:  # no JSON or no UTF-8; numbers too long, lists too deep
        raise Damaged(f"{file} is damaged: it is not valid JSON ({error}).") from None
    schema = value.get("schema", SCHEMA) if isinstance(value, dict) else None
    if schema is None:
        raise Damaged(f"{file} is damaged: it should hold a JSON object.")
    if not isinstance(schema, int):
        raise Damaged(f"{file} is damaged: its schema should be a number, and is {schema!r}.")
    if schema > SCHEMA:
        raise UserError(f"{file} was written by a newer vje (schema {schema}, this one knows {SCHEMA}): upgrade vje.")
    return dict(value)


def write_json(file: Path, value: dict[str, Any]) -> None:
    """Write a JSON object with the schema version, atomically."""
    text = json.dumps({"schema": SCHEMA, **finite(value)}, indent=2) + "\n"
    write_atomically(file, text.encode())


def write_atomically(file: Path, content: bytes) -> None:
    """Replace a file so that a reader, or a power cut, sees the old content or the new, never a part."""
    with replacing(file, "choose another folder") as partial, partial.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def replacing(file: Path, otherwise: str) -> Iterator[Path]:
    """A place beside a file to write to, which takes that file's place if the block ends well, and goes if not."""
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield partial
            partial.replace(file)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(file, error, otherwise) from None


def finite(value: Any) -> Any:
    """The value with what JSON cannot say (infinities, NaN, paths) as strings.

    >>> finite({"nu": math.inf, "out": Path("runs"), "k": (1, 2.5)})
    {'nu': 'inf', 'out': 'runs', 'k': [1, 2.5]}
    """
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return str(value) if isinstance(value, Path) else value


def _read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """Records of a ``.jsonl`` file; lines that are none, cut short by a power loss or damaged, are passed over."""
    if not file.exists():
        return
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


def _nearby_runs(path: Path) -> str:
    runs = sorted({p.parent for base in (path, path.parent) for p in base.glob("*/config.json")})
    names = ", ".join(re.sub(r"^\./", "", str(p)) for p in runs[:5])
    return f" Runs nearby: {names}." if runs else ""
