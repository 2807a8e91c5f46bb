"""What a table says of how it was made."""

import io

from rich.console import Console

from vje.experiments import load_experiment
from vje.experiments.grid import Scale
from vje.experiments.write import write
from vje.runs import read_json

QUOTED = """
about = "nothing of ours"

[[columns]]
name = "k-NN"

[[rows]]
name = "elsewhere"
quoted = "Others, 2020"
paper = ["88.8"]
"""


def test_the_command_that_made_it_can_be_pasted(tmp_path, monkeypatch):
    (tmp_path / "mine é.toml").write_text(QUOTED)
    experiment = load_experiment(str(tmp_path / "mine é.toml"))
    monkeypatch.setattr("sys.argv", ["vje", "reproduce", "mine é.toml", "--out", "a [bold]"])
    console = Console(file=io.StringIO(), width=200)
    page, data = write(experiment, Scale(), [], {}, tmp_path, console)
    command = "vje reproduce 'mine é.toml' --out 'a [bold]'"
    assert f"Made with `{command}`" in page.read_text() and f"Made with `{command}`" in console.file.getvalue()
    assert read_json(data)["made"]["command"] == command
