"""What worker processes have in common."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from vje.errors import UserError

_PATIENCE = 2.0

START = "fork" if sys.platform == "linux" else None
"""How workers start; None for Python's own choice. On Linux they must be children of this process, which
:func:`answer_to_the_parent` looks for: those of a fork server, which Python 3.14 starts by default, are not."""


class WorkerEnded(UserError):
    """A worker process was ended from outside; what was done until then can be kept."""


@contextmanager
def signals_held() -> Iterator[None]:
    """Start workers in this: signals wait, here until it ends, there until :func:`answer_to_the_parent` has its say."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    stops = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stops)  # workers inherit it
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def answer_to_the_parent(_: int) -> None:
    """Let a worker process end when its parent says so or is gone, and at nobody else's wish.

    Ctrl-C, a closed terminal, and a SIGTERM to the whole group reach every process, and are the parent's to answer: it
    may have work to save. A worker that waits for a file, as on a lost network drive, ends all the same.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGHUP"):  # not Windows
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if not hasattr(signal, "sigtimedwait"):  # macOS, Windows
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # in this thread and those it starts
    parent = multiprocessing.parent_process()  # which os.getppid() no longer tells if it is gone already
    assert parent is not None and parent.pid is not None
    threading.Thread(target=_heed, args=(parent.pid,), daemon=True).start()


def _heed(parent: int) -> None:
    while True:
        sent = signal.sigtimedwait({signal.SIGTERM}, _PATIENCE)
        if os.getppid() != parent or (sent is not None and sent.si_pid == parent):
            os._exit(0)


@contextmanager
def death_in_words() -> Iterator[None]:
    """Tell a worker's death in words: it is not the program's mistake, and there is a remedy.

    torch raises it wherever the main thread happens to be, so all that works with images has to be in this. A mistake
    of the user's that a worker found comes with the worker's traceback, and leaves without.
    """
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker (pid"):
            raise
        raise WorkerEnded(
            "a process that decodes images was ended from outside, perhaps for want of memory: try fewer --workers."
        ) from None
    except UserError as error:
        if "Original Traceback" not in str(error):
            raise
        raise UserError(str(error).rpartition(f"{UserError.__name__}: ")[2].strip()) from None
