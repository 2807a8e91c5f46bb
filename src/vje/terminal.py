"""Lines and tables for a terminal, where paths and commands are not broken and figures not lost."""

import textwrap
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def say(console: Console, text: str, style: str = "") -> None:
    """Print a line as it is: a path or command to copy is not broken, and brackets in a name are no markup."""
    console.print(Text(text, style), soft_wrap=True)


def print_whole(table: Table, title: str = "", console: Console | None = None) -> None:
    """Print a table as wide as it is, below a line that says what it is of; brackets in names are no markup.

    A window that is too narrow wraps the lines; a table that is too narrow would break its figures.
    """
    console = console or Console()
    if title:
        say(console, title, "bold")
    plain = {"markup": False, "emoji": False}
    needed = Console(width=1000, **plain).measure(table).maximum  # type: ignore[arg-type]
    Console(file=console.file, width=max(console.width, needed), **plain).print(table)  # type: ignore[arg-type]


def print_columns(titles: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print a table below a line that says what it is of; if a window is too narrow, in parts."""
    console, columns = Console(), list(zip(*rows, strict=True))
    if console.is_terminal:
        titles = [_narrow(title, column) for title, column in zip(titles, columns, strict=True)]
    cells = [(title, *column) for title, column in zip(titles, columns, strict=True)]
    widths = [max(len(line) for cell in column for line in cell.split("\n")) + 3 for column in cells]
    if console.is_terminal:  # long names in the first column are wrapped
        widths[0] = min(widths[0], max(20, console.width // 3))
    parts, room = [[cells[0]]], console.width - widths[0]
    for column, width in zip(cells[1:], widths[1:], strict=True):
        if console.is_terminal and width > room and len(parts[-1]) > 1:
            parts.append([cells[0]])
            room = console.width - widths[0]
        parts[-1].append(column)
        room -= width
    for part in parts:
        table = Table(box=box.SIMPLE, pad_edge=False)
        table.add_column(part[0][0], max_width=widths[0] - 3)
        for head, *_ in part[1:]:
            table.add_column(head, justify="right", no_wrap=True)
        for row in zip(*(column[1:] for column in part), strict=True):
            table.add_row(*row)
        print_whole(table, title if part is parts[0] else "")


def _narrow(title: str, cells: Sequence[str]) -> str:
    """A title in lines no longer than the cells below it, or than its longest word."""
    return "\n".join(textwrap.wrap(title, max(map(len, [*cells, *title.split()]))))


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(7), duration(75), duration(8000)
    ('7s', '1m15s', '2h13m')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
