"""Which process trains a run: one at a time, and the folder of a new run is nobody else's. Importable without torch."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from vje.errors import cannot_write
from vje.lock import Held, held
from vje.runs import RunFolder, Taken, free_names


@contextmanager
def claimed(folder: RunFolder) -> Iterator[RunFolder]:
    """Keep other processes from training a run while the block runs; they may read it as ever."""
    with ExitStack() as stack:
        try:
            stack.enter_context(held(folder.lock_file))
        except Held as holder:
            raise Taken(f"{folder.path} is being trained by {holder}: wait until it is through, or stop it.") from None
        except OSError as error:
            raise cannot_write(f"to {folder.path}", error, "train in another folder") from None
        yield folder


@contextmanager
def new_run(path: Path, exact: bool) -> Iterator[RunFolder]:
    """A new run folder, which is this process's to train in while the block runs.

    If the block ends before the run has its ``config.json``, the folder goes again, unless it was there before.

    Args:
        path: the folder that is wanted.
        exact: refuse if it is taken; otherwise the next free name will do.
    """
    with ExitStack() as stack:
        for candidate in [path] if exact else free_names(path):
            stack.callback(_remove_unstarted, RunFolder(candidate), was_there=candidate.exists())
            try:
                folder = stack.enter_context(claimed(RunFolder.create(candidate)))
                RunFolder.create(candidate)  # again: another process may have been there in between
                break
            except Taken:
                stack.close()
                if exact:
                    raise
        yield folder


def _remove_unstarted(folder: RunFolder, was_there: bool) -> None:
    """Remove the folder of a run that never began; one that holds anything, or was there before, stays."""
    with suppress(OSError):
        if not (was_there or folder.config_file.exists()):
            folder.checkpoints.rmdir()
            folder.path.rmdir()
