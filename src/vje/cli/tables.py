"""Tables for a terminal that lose no figure in a narrow window."""

from rich.console import Console
from rich.table import Table


def print_whole(table: Table, title: str = "") -> None:
    """Print a table as wide as it is, below a line that says what it is of; brackets in names are no markup.

    A window that is too narrow wraps the lines; a table that is too narrow would break its figures.
    """
    if title:
        print(title)
    plain = {"markup": False, "emoji": False}
    needed = Console(width=1000, **plain).measure(table).maximum  # type: ignore[arg-type]
    Console(width=max(Console().width, needed), **plain).print(table)  # type: ignore[arg-type]
