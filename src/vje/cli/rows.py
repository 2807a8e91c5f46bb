"""Tables that grow row by row: CSV, which keeps its whole rows if the process is killed, and Parquet."""

import csv
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from vje.errors import UserError, cannot_write

Row = Sequence[Any]


class CsvTable:
    """A CSV file or, without one, standard output; rows are there as soon as they are written.

    Args:
        file: to write, or ``None``.
        header: names of the columns.
        keep: bytes of the file to leave as they are and continue after; 0 starts anew, with the header.
    """

    def __init__(self, file: Path | None, header: Row, keep: int = 0) -> None:
        self._file = file
        try:
            self._stream: IO[bytes] = sys.stdout.buffer if file is None else file.open("r+b" if keep else "wb")
            if keep:
                self._stream.truncate(keep)
                self._stream.seek(keep)
        except OSError as error:
            raise _cannot_write(file, error) from None
        if not keep:
            self.write([header])

    def write(self, rows: Sequence[Row]) -> None:
        """Add rows."""
        lines: list[str] = []
        csv.writer(SimpleNamespace(write=lines.append)).writerows(rows)  # ends in \r\n, for it quotes what is in there
        text = "".join(line.removesuffix("\r\n") + "\n" for line in lines)
        try:
            self._stream.write(text.encode("utf-8", "surrogateescape"))  # file names may be any bytes
            self._stream.flush()
        except BrokenPipeError:  # the reader, such as `head`, has seen enough
            raise
        except OSError as error:
            raise _cannot_write(self._file, error) from None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._stream.close()

    abandon = close


class ParquetTable:
    """A Parquet file, which appears under its name when it is whole.

    Args:
        file: to write.
        types: name of each column, and its type in pyarrow's words.
    """

    def __init__(self, file: Path, types: dict[str, str]) -> None:
        import pyarrow
        from pyarrow import parquet

        self._file, self._partial = file, file.with_name(f".{file.name}.partial")
        self._schema = pyarrow.schema(list(types.items()))
        try:
            self._writer = parquet.ParquetWriter(self._partial, self._schema)
        except OSError as error:
            self._remove()
            raise _cannot_write(file, error) from None

    def write(self, rows: Sequence[Row]) -> None:
        """Add rows."""
        import pyarrow

        columns = zip(*([valid_unicode(value) for value in row] for row in rows), strict=True)
        arrays = [pyarrow.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        try:
            self._writer.write_table(pyarrow.Table.from_arrays(arrays, schema=self._schema))
        except OSError as error:
            raise _cannot_write(self._file, error) from None

    def close(self) -> None:
        """Finish the file and give it its name."""
        try:
            self._writer.close()
            self._partial.replace(self._file)
        except OSError as error:
            self._remove()
            raise _cannot_write(self._file, error) from None

    def abandon(self) -> None:
        """Leave nothing behind."""
        with suppress(OSError):  # a full disk, which was told
            self._writer.close()
        self._remove()

    def _remove(self) -> None:
        with suppress(OSError):
            self._partial.unlink()


def whole_rows(file: Path, header: Sequence[str]) -> Iterator[tuple[dict[str, str], int]]:
    """The rows of a CSV file by column, each with the place in the file where it ends.

    A last row that was cut short is left out. A file with another header is refused.
    """
    for number, (values, end) in enumerate(_records(file)):
        if number == 0 and values != list(header):
            raise _other_columns(file, header)
        if len(values) != len(header):
            raise UserError(f"{file}: row {number + 1} has {len(values)} values and not {len(header)}; mend it first.")
        yield dict(zip(header, values, strict=True)), end


def check_header(file: Path, header: Sequence[str]) -> None:
    """Refuse to continue a CSV file that has other columns; one cut short within the header is fine."""
    first = next((values for values, _ in _records(file)), None)
    with file.open("rb") as stream:
        beginning = stream.read(1 << 16)
    if first != list(header) and (first is not None or not ",".join(header).encode().startswith(beginning)):
        raise _other_columns(file, header)


def _records(file: Path) -> Iterator[tuple[list[str], int]]:
    record, end = b"", 0
    with file.open("rb") as stream:
        for line in stream:
            record += line
            if not record.endswith(b"\n") or record.count(b'"') % 2:  # cut short, or a line break within quotes
                continue
            end += len(record)
            try:
                values = next(csv.reader([record.decode("utf-8", "surrogateescape")]))
            except csv.Error as error:
                raise UserError(f"{file}: the row up to byte {end} is damaged ({error}); mend it first.") from None
            yield values, end
            record = b""


def valid_unicode(value: Any) -> Any:
    """What Parquet takes: of a file name that is no valid Unicode, what is."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _other_columns(file: Path, header: Sequence[str]) -> UserError:
    return UserError(
        f"{file} cannot be continued: its columns are not {', '.join(header)}. Use the options that it was written "
        "with, choose another --out, or replace it with --force."
    )


def _cannot_write(file: Path | None, error: OSError) -> UserError:
    return cannot_write(file or "to standard output", error, "choose another --out")
