"""``vje``: finds the command and hands over. Nothing heavy is imported before a command needs it."""

import difflib
import io
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from vje import __version__
from vje.cli.streams import outlast_readers
from vje.data.workers import death_in_words
from vje.errors import UserError

COMMANDS = {
    "train": "train an encoder, or resume a run",
    "evaluate": "k-NN, posterior statistics and effective rank of a run",
    "probe": "the linear probe: a linear classifier on a run's frozen features",
    "geometry": "how the posterior varies with an image's place among the classes: table and map",
    "embed": "embeddings and uncertainties of images, to a file",
    "compare": "runs side by side: one table and one figure, seeds averaged",
    "ood": "out-of-distribution detection: every score on every data set",
    "calibrate": "scores of held-out images, kept with a run for p-values",
    "score": "score images: how unusual each is, with p-values and outliers, to a file",
    "reproduce": "make a table or figure of the paper: its runs, then ours beside the paper's",
    "report": "a page to look at a run: curves, map of the images, typical and odd ones; or to compare runs",
    "profile": "what training methods cost: parameters, operations, speed and memory",
    "demo": "train on handwritten digits on the CPU and look at the result (two minutes)",
    "recipes": "list the training recipes",
}


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    if arguments is None:  # as a program, whose streams are its own
        arguments = sys.argv[1:]
        outlast_readers()
    if isinstance(sys.stdout, io.TextIOWrapper):  # as standard error is: a file's name may hold what cannot be printed
        sys.stdout.reconfigure(errors="backslashreplace")
    # OpenMP threads that spin long while they wait are several times slower on a machine that does other work too.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    try:
        with _warnings_in_words():
            return _dispatch(arguments)
    except UserError as error:
        print(f"vje: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("vje: interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has seen enough of what it is the command's work to print
        sys.stderr.close()
        return 0


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"vje {__version__}")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f" Did you mean `vje {close[0]}`?" if close else ""
        raise UserError(f"there is no command {name!r}.{hint} Commands: {', '.join(COMMANDS)}.")
    with death_in_words():
        status: int = import_module(f"vje.cli.{name}").run(rest)
    return status


@contextmanager
def _warnings_in_words() -> Iterator[None]:
    """Say in one line what this package warns of, without the place in its source; the rest stays as it is."""
    package, usual = Path(__file__).resolve().parents[1], warnings.formatwarning

    def words(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        ours = issubclass(category, UserWarning) and Path(filename).resolve().is_relative_to(package)
        return f"warning: {message}\n" if ours else usual(message, category, filename, lineno, line)

    warnings.formatwarning = words
    try:
        yield
    finally:
        warnings.formatwarning = usual


def _help() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {about}" for name, about in COMMANDS.items())
    return (
        "vje: self-supervised image representations with uncertainty (Variational Joint Embedding)\n\n"
        "usage: vje COMMAND [OPTIONS]      vje COMMAND --help tells more\n\n"
        f"commands:\n{commands}\n\n"
        "to begin: vje demo"
    )
