"""One process trains a run: claims that exclude each other, and that end with the process however it ends."""

import os
import signal
import subprocess
import sys

import pytest

from vje.claims import claimed, new_run
from vje.errors import UserError
from vje.lock import held, lock
from vje.runs import RunFolder

CLAIM = """
import os, sys
from pathlib import Path
from vje.claims import new_run
from vje.errors import UserError
sys.stdin.readline()
try:
    with new_run(Path(sys.argv[1]), exact=sys.argv[2] == "exact") as folder:
        child = "fork" in sys.argv and os.fork() == 0
        if child or "fork" not in sys.argv:
            print(folder.path, flush=True)
        sys.stdin.readline()
        if child:
            os._exit(0)
except UserError as error:
    print(error, flush=True)
"""


@pytest.fixture
def start(cli_env):
    """``start(*arguments)``: a process that claims a new run when told, and holds it until told again."""
    children = []

    def one(*arguments):
        command = [sys.executable, "-c", CLAIM, *map(str, arguments)]
        children.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=cli_env())
        )
        return children[-1]

    yield one
    for child in children:
        child.kill()
        child.communicate()


def tell(*children):
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()


def test_processes_that_start_side_by_side_get_a_folder_each(start, tmp_path):
    children = [start(tmp_path / "run", "any") for _ in range(4)]
    tell(*children)
    found = {child.stdout.readline().strip() for child in children}
    assert len(found) == 4 and str(tmp_path / "run") in found
    assert all(RunFolder(tmp_path / name).lock_file.exists() for name in found)
    tell(*children)
    assert [child.wait() for child in children] == [0] * 4
    assert not list(tmp_path.rglob(".lock"))  # nothing is left behind


def test_of_several_that_want_the_same_folder_one_gets_it(start, tmp_path):
    children = [start(tmp_path / "run", "exact") for _ in range(3)]
    tell(*children)
    answers = sorted(child.stdout.readline().strip() for child in children)
    assert answers[0] == str(tmp_path / "run")
    assert all(f"{tmp_path / 'run'} is being trained by " in answer for answer in answers[1:])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="signals and fork")
@pytest.mark.parametrize("words", [(), ("fork",)])
def test_a_process_that_is_killed_lets_go_even_if_a_child_of_it_lives(start, tmp_path, words):
    child = start(tmp_path / "run", "exact", *words)
    tell(child)
    assert child.stdout.readline().strip() == str(tmp_path / "run")
    with pytest.raises(UserError, match=f"is being trained by process {child.pid} on .*: wait until"):
        new_run(tmp_path / "run", exact=True).__enter__()
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert RunFolder(tmp_path / "run").lock_file.exists()
    with new_run(tmp_path / "run", exact=True) as folder:
        assert folder.lock_file.read_text().startswith(f"process {os.getpid()} on ")
    assert [path.name for path in folder.path.iterdir()] == ["checkpoints"]


def test_nothing_is_left_of_a_run_that_never_began(tmp_path):
    def fail(path, *, exact=True, begun=False):
        with pytest.raises(ZeroDivisionError), new_run(path, exact) as folder:
            if begun:
                folder.write("config", {})
            raise ZeroDivisionError
        return folder.path

    assert not fail(tmp_path / "new").exists()
    assert fail(tmp_path / "begun", begun=True).joinpath("config.json").exists()
    assert fail(tmp_path / "begun", exact=False) == tmp_path / "begun-2"
    assert not (tmp_path / "begun-2").exists()
    (tmp_path / "mine").mkdir()
    assert fail(tmp_path / "mine").is_dir()


def test_a_folder_that_became_a_run_in_the_meantime_is_passed_over(tmp_path, monkeypatch):
    create = RunFolder.create

    def late(path):
        """Someone else is quicker: between the first look and the lock, a whole run is made."""
        folder = create(path)
        if path.name == "run":
            folder.write("config", {})
        return folder

    monkeypatch.setattr(RunFolder, "create", late)
    with new_run(tmp_path / "run", exact=False) as folder:
        assert folder.path == tmp_path / "run-2"
        assert not RunFolder(tmp_path / "run").lock_file.exists()
    with pytest.raises(UserError, match="already holds a run"), new_run(tmp_path / "run", exact=True):
        pass


def test_a_claim_ends_with_its_block_however_that_ends(tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt), claimed(folder):
        raise KeyboardInterrupt
    with pytest.raises(OSError, match="of the block"), claimed(folder):  # is no trouble with the lock
        raise OSError("of the block")
    with claimed(folder), pytest.raises(UserError, match="is being trained by process"), claimed(folder):
        pass
    assert not folder.lock_file.exists()


def test_a_lock_file_that_was_removed_is_not_taken_for_the_lock(tmp_path, monkeypatch):
    """The holder before removes the file and lets go, between our opening and locking of it."""
    tries = []

    def late(stream, wait):
        tries.append(stream)
        if len(tries) == 1:
            (tmp_path / "lock").unlink()
        return lock(stream, wait)

    monkeypatch.setattr("vje.lock.lock", late)
    with held(tmp_path / "lock"):
        assert len(tries) == 2 and tries[0].closed
        assert (tmp_path / "lock").read_text().startswith(f"process {os.getpid()} on ")


def test_without_locks_everyone_is_let_through(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)  # as on Windows
    folder = RunFolder.create(tmp_path / "run")
    with claimed(folder), claimed(folder):
        pass
    assert not folder.lock_file.exists()


def test_a_folder_that_cannot_be_written_to_is_told_in_words(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(UserError, match=r"cannot write to .*train in another folder"),
        claimed(RunFolder(tmp_path / "file")),
    ):
        pass
