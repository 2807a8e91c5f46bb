"""Mistakes that are the user's to mend, and the words for them."""

import errno
import shlex
from pathlib import Path


class UserError(ValueError):
    """What was wrong, the offending value, and what to do: the command line prints it without a traceback."""


def command(*words: str | Path) -> str:
    """A command as it can be pasted into a shell, whatever is in its paths.

    >>> print(command("vje", "evaluate", Path("runs/five [bold]")))
    vje evaluate 'runs/five [bold]'
    """
    return shlex.join(map(str, words))


def cannot_write(file: str | Path, error: OSError, otherwise: str) -> UserError:
    """The error for a file that could not be written, with a remedy that fits the reason.

    >>> print(cannot_write("a.json", OSError(errno.EACCES, "Permission denied"), "choose another --out"))
    cannot write a.json (Permission denied): get permission to write there, or choose another --out.
    """
    remedies = {
        errno.ENOSPC: "free some space",
        errno.EDQUOT: "free some space",
        errno.EACCES: "get permission to write there",
        errno.EPERM: "get permission to write there",
        errno.EROFS: "mount it for writing",
    }
    remedy = remedies.get(error.errno or 0)
    return UserError(
        f"cannot write {file} ({error.strerror or error}): {f'{remedy}, or ' if remedy else ''}{otherwise}."
    )
