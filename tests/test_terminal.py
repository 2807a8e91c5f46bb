import io

import pytest
from rich.console import Console
from rich.table import Table

from vje.terminal import print_whole, say


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=20)


def test_names_in_tables_are_no_markup(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    table = Table("[bold]name", ":warning:")
    table.add_row("a" * 40, "[red]b")
    print_whole(table, "a [b]title")
    out = capsys.readouterr().out
    assert out.startswith("a [b]title\n")
    assert all(text in out for text in ("[bold]name", ":warning:", "a" * 40, "[red]b"))


def test_a_table_goes_where_it_is_told_and_loses_no_figure(console):
    table = Table("mean and deviation", "another one")
    table.add_row("90.0 ± 1.0", "0.125 ± 0.002")
    print_whole(table, "what it is of, in a line that is not broken", console)
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "what it is of, in a line that is not broken"
    assert any("90.0 ± 1.0" in line and "0.125 ± 0.002" in line for line in lines)


def test_a_line_to_copy_is_not_broken_and_no_markup(console):
    say(console, "vje train --resume 'runs/a [bold] name'", "dim")
    assert console.file.getvalue() == "vje train --resume 'runs/a [bold] name'\n"
