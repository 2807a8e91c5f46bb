"""What results say they were made with."""

import shutil
import subprocess
from pathlib import Path

import pytest

import vje
from vje.environment import commit


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository that the package seems to run from."""
    if shutil.which("git") is None:
        pytest.skip("there is no git here")

    def git(*words):
        who = ["-c", "user.name=n", "-c", "user.email=e"]
        return subprocess.run(["git", "-C", str(tmp_path), *who, *words], capture_output=True, text=True, check=True)

    file = tmp_path / "src/vje/__init__.py"
    file.parent.mkdir(parents=True)
    file.touch()
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "m")
    monkeypatch.setattr(vje, "__file__", str(file))
    return tmp_path, git("rev-parse", "HEAD").stdout.strip()


def test_the_commit_is_marked_if_code_changed(checkout):
    root, head = checkout
    assert commit() == head
    (root / "data").symlink_to("/")
    (root / "notes.txt").touch()
    assert commit() == head
    (root / "src/vje/new.py").touch()
    assert commit() == f"{head}-changed"


def test_without_a_repository_a_variable_says_it(tmp_path, monkeypatch):
    monkeypatch.setattr(vje, "__file__", str(Path(tmp_path / "src/vje/__init__.py")))
    monkeypatch.setenv("VJE_COMMIT", "abc")
    assert commit() == "abc"
    monkeypatch.delenv("VJE_COMMIT")
    assert commit() is None
