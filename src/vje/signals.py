"""Signals that ask a process to stop. Importable without torch."""

import signal


def stop_signals() -> list[signal.Signals]:
    """Ctrl-C, SIGTERM and that the terminal was closed, unless this process was started to outlive it, as by nohup."""
    found = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        found.append(signal.SIGHUP)
    return found
