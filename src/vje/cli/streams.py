"""What is printed, and to whom: work does not end because nobody reads what it says of itself."""

import errno
import io
import os
import sys


class Outlasting(io.TextIOWrapper):
    """A stream that drops what it is given once its reader is gone, such as a closed terminal or a pipe into ``head``.

    The bytes below, :attr:`buffer`, fail as ever: a command whose work it is to print can still end there.
    """

    before: io.TextIOWrapper

    def write(self, text: str) -> int:
        """Write, or drop."""
        try:
            return super().write(text)
        except OSError as error:
            self._drop(error)
            return len(text)

    def flush(self) -> None:
        """Flush, or drop."""
        try:
            super().flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())  # what is still in the buffer goes there too, at the latest when Python ends
        os.close(nowhere)


def outlast_readers() -> None:
    """Let this process go on when nobody reads its output any more."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if type(stream) is io.TextIOWrapper:
            stream.flush()
            lasting = Outlasting(
                stream.buffer, stream.encoding, stream.errors, line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )  # fmt: skip
            lasting.before = stream  # which would close the buffer that they share if it went
            setattr(sys, name, lasting)
            if getattr(sys, f"__{name}__") is stream:
                setattr(sys, f"__{name}__", lasting)
