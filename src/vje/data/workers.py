"""What worker processes have in common."""

import signal


def leave_interrupts_to_the_parent(_: int) -> None:
    """Ctrl-C, and a SIGTERM to the whole group, reach every process; only the parent should answer them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
