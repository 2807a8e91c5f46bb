"""Signals that ask a process to stop. Importable without torch."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def heeding(request: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have ``request`` answer Ctrl-C, SIGTERM and a closed terminal, unless this process is to outlive that (nohup).

    Outside the main thread, as in a notebook's worker, signals are someone else's.
    """
    asked = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        asked.append(signal.SIGHUP)
    before: dict[int, Any] = {}
    try:
        for number in asked:
            before[number] = signal.signal(number, request)
    except ValueError:
        pass
    try:
        yield
    finally:
        for known, handler in before.items():
            signal.signal(known, handler)
