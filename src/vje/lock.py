"""One process at a time: locks that the kernel holds for a process, and lets go of however that process ends."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


class Held(Exception):
    """Another process has the lock; the message says which."""


def lock(stream: IO[Any], wait: bool = False) -> bool:
    """Lock an open file until it is closed, here and in children that have it too; False if another process has it.

    Where there are no such locks, on Windows and on some network file systems, everyone is let through. With ``wait``,
    so is everyone else, once the others are through.
    """
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(stream, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@contextlib.contextmanager
def held(file: Path, wait: bool = False) -> Iterator[None]:
    """Hold a lock by the name of a file, which is there only while the block runs; see :func:`lock`.

    Raises:
        Held: another process has it, and there was to be no waiting.
        OSError: the file cannot be written.
    """
    stream = _acquire(file, wait)
    try:
        yield
    finally:
        if os.name != "posix":  # what is open cannot be removed there
            stream.close()
        with contextlib.suppress(OSError):
            file.unlink()
        stream.close()  # after the file is gone, so that nobody else's is removed


def _acquire(file: Path, wait: bool) -> IO[bytes]:
    """The file, open, locked and with the name of this process in it."""
    while True:
        stream = file.open("ab+", buffering=0)
        if not lock(stream, wait):
            with stream:
                stream.seek(0)
                raise Held(stream.read().decode(errors="replace").strip() or "another process")
        if _is_at(file, stream):
            break
        stream.close()  # the one before removed it just before letting go
    with contextlib.suppress(OSError):  # the lock counts; who has it is for people
        stream.truncate(0)
        stream.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=stream.close)  # loaders that outlive a killed process must not keep it
    return stream


def _is_at(file: Path, stream: IO[bytes]) -> bool:
    try:
        return os.path.samestat(file.stat(), os.fstat(stream.fileno()))
    except FileNotFoundError:
        return False
