"""Lines and tables for a terminal, where paths and commands are not broken and figures not lost."""

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
