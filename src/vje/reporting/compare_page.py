"""Several runs on one page: a table, k-NN over epochs, and the way to each run's own report."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vje.reporting.compare import Group, group_runs, read_runs
from vje.reporting.compare_table import footnotes, heads, rows
from vje.reporting.html import Html, fill, page, table, tag
from vje.reporting.run_page import summary
from vje.runs import RunFolder, distinct

SCRIPTS = ("common.js", "charts.js", "comparison.js")


def compare_page(folders: Sequence[RunFolder], out: Path) -> str:
    """The whole page.

    Args:
        folders: of the runs; one that is given twice counts once.
        out: file that it will be in; links to the runs' reports start from there.
    """
    folders = distinct(folders)
    groups = group_runs(read_runs(folders))
    panels = _panels(groups)
    curves = Html('<div id="curves" class="wide"></div>') if panels else tag("p", "None was recorded.", class_="note")
    title = f"{len(folders)} run{'s' * (len(folders) != 1)} compared"
    body = fill("comparison.html", title=title, table=_table(groups), curves=curves, runs=_runs(folders, out))
    return page(title, body, {"panels": panels}, SCRIPTS)


def _table(groups: Sequence[Group]) -> Html:
    below = (tag("p", note, class_="note") for note in footnotes(groups))
    return Html("".join([table(heads(groups), rows(groups), "What the runs reached"), *below]))


def _panels(groups: Sequence[Group]) -> list[dict[str, Any]]:
    lines = []
    for group in groups:
        curve = group.curve()
        if curve:
            epochs, mean, std = (list(x) for x in zip(*curve, strict=True))
            lines.append({"name": group.name, "x": epochs, "y": mean} | ({"std": std} if len(group.runs) > 1 else {}))
    return [{"title": "k-NN accuracy of z (%)", "lines": lines}] if lines else []


def _runs(folders: Sequence[RunFolder], out: Path) -> Html:
    items = []
    for folder in folders:
        report = folder.path / "report.html"
        name: Html | str = str(folder.path)
        if report.exists():
            name = tag("a", folder.path, href=quote(os.path.relpath(report, out.parent)))
        items.append(tag("li", name, tag("div", summary(folder.read("config"), folder.progress()), class_="note")))
    return tag("ul", *items)
