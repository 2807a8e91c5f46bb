"""One pass of ``vje score`` over the images: what is left to do, the rows, the extremes, the summary."""

import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from vje.cli.console import counting
from vje.cli.rows import CsvTable, ParquetTable, Row, whole_rows
from vje.cli.score import SCORES, Options, say
from vje.data.sources import FolderSource, ImageSource
from vje.errors import UserError
from vje.ood.conformal import p_values
from vje.ood.detector import ImageDetector, ScoredBatch
from vje.reporting.sheet import Extremes, save_sheet

SAME = 1e-3
"""How far an image's score may be from itself in another batch or on another device, and as a share of it."""


class ScoringJob:
    """One pass over the images."""

    def __init__(self, options: Options, source: ImageSource, detector: ImageDetector) -> None:
        self.options, self.source, self.detector = options, source, detector
        self.count: Counter[str] = Counter()
        self.extremes = Extremes(options.top)
        self._root = source.root if isinstance(source, FolderSource) else None
        if self._root is not None and self._root.is_absolute() and not Path(options.images[0]).is_absolute():
            self._root = Path(os.path.relpath(self._root))  # the folder that several paths have in common

    def score(self) -> None:
        """Score and write what is not written yet."""
        todo, keep = self._remaining()
        table = open_table(self.options, keep)
        try:
            with counting("images") as report:
                for rows in self._scored(todo) if todo else ():
                    table.write([row for _, row in rows])
                    for place, row in rows:
                        self._note(dict(zip(self.options.columns, row, strict=True)), place)
                    report(sum(self.count[kind] for kind in ("before", "scored", "unreadable")), len(self.source))
        except BaseException:
            table.abandon()
            raise
        table.close()

    def sum_up(self) -> None:
        """Draw the sheet, and say what was done."""
        options, count = self.options, self.count
        if options.sheet is not None:
            ends = [self.extremes.highest(), self.extremes.lowest()][:: self.detector.sign]
            titles = [f"{which} typical, by {self.detector.ranked_by}" for which in ("least", "most")]
            rows = dict(zip(titles, ends, strict=True))
            drawn = save_sheet(options.sheet, self.source, self.detector.preprocessing, rows, self._name)
            say(f"{drawn} images drawn in {options.sheet}" if drawn else "no image could be read for the sheet")
        parts = [f"{count['scored']:,} image{'s' * (count['scored'] != 1)} scored"]
        if count["before"]:
            lost = f", {count['lost']:,} of them unreadable then and not tried again" if count["lost"] else ""
            parts.append(f"{count['before']:,} were there before{lost}")
        if self.detector.calibration is not None:
            whose = " among all" if count["before"] else ""
            plural = "s" * (count["outliers"] != 1)
            parts.append(f"{count['outliers']:,} outlier{plural}{whose} at a false-alarm rate of {options.alpha:g}")
        if count["unreadable"]:
            parts.append(f"{count['unreadable']:,} file{'s' * (count['unreadable'] != 1)} unreadable")
        say("; ".join(parts) + ("." if options.file is None else f"; written to {options.out}"))

    def _remaining(self) -> tuple[Sequence[int], int]:
        """Places of the images that are not in the file yet, and how many bytes of the file stay."""
        options, everything = self.options, range(len(self.source))
        if not (options.append and options.out.exists()):
            return everything, 0
        here, done = Path.cwd(), dict[str, str]()  # the score of each file, empty if it has none
        outliers = set[str]()
        rows = whole_rows(options.out, options.columns)
        _, end = next(rows, ({}, 0))  # the header
        for row, position in rows:
            self._check_row(row, thoroughly=len(done) < 100)
            name = os.path.normpath(here / row["file"])
            end, done[name] = position, row[self.detector.ranked_by]
            if row["outlier"] == str(True):
                outliers.add(name)
        names = [os.path.normpath(here / self._name(place)) for place in everything]
        scores = {place: self._number(done[names[place]]) for place in everything if done.get(names[place])}
        self._check_model(scores)
        for place, score in scores.items():
            self.extremes.add(score, place)
        todo = [place for place in everything if names[place] not in done]
        self.count["before"] = len(everything) - len(todo)
        self.count["lost"] = sum(done.get(name) == "" for name in names)
        self.count["outliers"] = sum(name in outliers for name in names)
        return todo, end

    def _check_row(self, row: dict[str, str], thoroughly: bool) -> None:
        """Refuse to mix rows that do not mean the same."""
        out, detector, p = self.options.out, self.detector, ""
        if row["error"]:
            return
        if thoroughly and detector.calibration is not None:
            p = str(p_values(detector.calibration.scores, detector.sign * self._number(row[detector.ranked_by])))
        if thoroughly and row["p_value"] != p:
            raise UserError(f"{out} was begun with another calibration, or none: score it all again, with --force.")
        if row["p_value"] and row["outlier"] != str(self._number(row["p_value"]) <= self.options.alpha):
            raise UserError(f"{out} was begun with another --alpha: use that, or start a new file with --force.")

    def _number(self, text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise UserError(f"{self.options.out} has {text!r} where a score should be: mend it first.") from None

    def _check_model(self, scores: dict[int, float]) -> None:
        """Refuse to mix scores of two models, or of other views: most of some images must still have theirs."""
        again = list(scores)[:5]  # not all, as a file may have changed since
        if not again:
            return
        batch = next(iter(self.detector.stream(self.source.subset(again), self.options.alpha)))
        if not batch.indices:  # they cannot be read any more
            return
        found = zip(batch.indices, batch.scores[self.detector.ranked_by].tolist(), strict=True)
        pairs = [(scores[again[index]], score) for index, score in found]
        others = [pair for pair in pairs if not math.isclose(*pair, rel_tol=SAME, abs_tol=SAME)]
        if 2 * len(others) >= len(pairs):
            before, now = others[0]
            name = self._name(again[batch.indices[pairs.index(others[0])]])
            raise UserError(
                f"{self.options.out} was begun with another model, or other --views ({name} has {before:g} there, and "
                f"{now:g} now): score it all again with --force, or choose another --out."
            )

    def _scored(self, todo: Sequence[int]) -> Iterator[list[tuple[int, Row]]]:
        """(place, row) of each image to do, a batch at a time."""
        options, source, places, first = self.options, self.source, todo, todo[0]
        if len(todo) < len(source):
            # Begin where the interrupted batch began: a batch of others could change the last digits.
            places = [*range(first - first % options.batch, first), *todo]
            source = source.subset(places)
        explain, calibrated = options.explain > 0, self.detector.calibration is not None
        for batch in self.detector.stream(source, options.alpha, explain, options.batch, options.workers):
            rows = ((places[index], values) for index, values in _values(batch, options, calibrated))
            yield [(place, [self._name(place), *values]) for place, values in rows if place >= first]

    def _note(self, row: dict[str, Any], place: int) -> None:
        """Count a row, and remember the image if it is an extreme one."""
        if row["error"] is not None:
            self.count["unreadable"] += 1
            return
        self.count["scored"] += 1
        self.count["outliers"] += bool(row["outlier"])
        self.extremes.add(row[self.detector.ranked_by], place)

    def _name(self, place: int) -> str:
        """The column ``file``: a path that can be opened, or an array's name and the place in it."""
        if self._root is not None:
            return str(self._root / self.source.names[place])
        split = f":{self.options.split}" if self.options.split else ""
        return f"{self.options.images[0]}{split}[{self.source.names[place]}]"


def open_table(options: Options, keep: int = 0) -> CsvTable | ParquetTable:
    """The file to write, or standard output; ``keep`` bytes of a CSV file stay as they are."""
    file, columns = options.file, options.columns
    if file is None or file.suffix == ".csv":
        return CsvTable(file, columns, keep)
    types = {"file": "string", "p_value": "float64", "outlier": "bool", "features": "string", "error": "string"}
    return ParquetTable(file, {column: types.get(column, "float32") for column in columns})


def _values(batch: ScoredBatch, options: Options, calibrated: bool) -> list[tuple[int, Row]]:
    """What follows the file's name in the rows of a batch, each with its place, in order."""
    blank = [None] * (len(options.columns) - 2)
    rows: list[tuple[int, Row]] = [(index, [*blank, reason]) for index, reason in batch.failures]
    unknown = [None] * len(batch.indices)
    known = [name for name in batch.scores if calibrated or name not in ("p_value", "outlier")]
    columns: list[list[Any]] = [
        batch.scores[name].tolist() if name in known else unknown for name in (*SCORES, "p_value", "outlier")
    ]
    columns += [_features(batch.scores["contributions"], options.explain)] if "contributions" in batch.scores else []
    for index, *values in zip(batch.indices, *columns, strict=True):
        usable = not any(map(math.isnan, values[: len(SCORES)]))
        rows.append((index, [*values, None] if usable else [*blank, "the model's scores are not numbers"]))
    return sorted(rows, key=lambda row: row[0])


def _features(contributions: Tensor, count: int) -> list[str]:
    """The features that contribute most, each with its contribution."""
    values, indices = contributions.topk(min(count, contributions.shape[1]))
    pairs = zip(indices.tolist(), values.tolist(), strict=True)
    return [" ".join(f"{i}:{v:.4g}" for i, v in zip(*pair, strict=True)) for pair in pairs]
