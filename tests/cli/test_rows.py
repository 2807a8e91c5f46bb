import csv
import errno
import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from vje.cli.rows import CsvTable, ParquetTable, check_header, whole_rows
from vje.errors import UserError


def test_a_table_is_continued_after_its_whole_rows(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    table = CsvTable(file, ["file", "error"])
    table.write([["a", None], ["b\nc", "x, y"], ["\udcff", None]])  # a name that is not valid Unicode
    assert file.read_bytes() == b'file,error\na,\n"b\nc","x, y"\n\xff,\n'  # before it is closed
    table.close()
    rows = list(whole_rows(file, ["file", "error"]))
    assert [row["file"] for row, _ in rows] == ["file", "a", "b\nc", "\udcff"]
    again = CsvTable(file, ["file", "error"], keep=rows[1][1])
    again.write([["d", None]])
    again.close()
    assert file.read_bytes() == b"file,error\na,\nd,\n"


@pytest.mark.parametrize("name", ["a\rb", "a\r\nb", "\r", "a\r", '"a\r"', "a,\n\r"])
def test_whatever_is_in_a_file_s_name_comes_back(tmp_path: Path, name: str) -> None:
    file = tmp_path / "a.csv"
    CsvTable(file, ["file", "error"]).write([[name, None], ["next", "it's cut\rshort"]])
    rows = [row for row, _ in whole_rows(file, ["file", "error"])][1:]
    assert rows == [{"file": name, "error": ""}, {"file": "next", "error": "it's cut\rshort"}]
    with file.open(newline="", encoding="utf-8") as stream:
        assert [row[0] for row in csv.reader(stream)] == ["file", name, "next"]


def test_a_damaged_row_is_told_in_words(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b"file,error\na\rb,\n")
    with pytest.raises(UserError, match=r"a\.csv: the row up to byte 16 is damaged"):
        list(whole_rows(file, ["file", "error"]))


def test_a_table_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write"):
        CsvTable(tmp_path / "gone" / "a.csv", ["file"])


@pytest.mark.parametrize(("number", "remedy"), [(errno.ENOSPC, "free some space"), (errno.EACCES, "get permission")])
def test_the_remedy_is_that_of_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(UserError, match=rf"a\.csv \(no\): {remedy}.*, or choose another --out\.$"):
        CsvTable(tmp_path / "a.csv", ["file"])


def test_whole_rows(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b'file,error\na,\n"b\nc",x\nd')
    assert [row["file"] for row, _ in whole_rows(file, ["file", "error"])] == ["file", "a", "b\nc"]
    assert [end for _, end in whole_rows(file, ["file", "error"])] == [11, 14, 22]
    file.write_bytes(b"file,error\na,b,c\n")
    with pytest.raises(UserError, match="row 2 has 3 values and not 2"):
        list(whole_rows(file, ["file", "error"]))
    file.write_bytes(b"file,error\na,b\nc\n")
    with pytest.raises(UserError, match="row 3 has 1 values and not 2"):
        list(whole_rows(file, ["file", "error"]))
    with pytest.raises(UserError, match=r"its columns are not file, reason.* or replace it with --force"):
        list(whole_rows(file, ["file", "reason"]))
    file.write_bytes(b"file,er")
    check_header(file, ["file", "error"])
    with pytest.raises(UserError, match="cannot be continued"):
        check_header(file, ["file", "reason"])


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [
        (BrokenPipeError(errno.EPIPE, "no"), BrokenPipeError, "no"),
        (OSError(errno.ENOSPC, "no"), UserError, r"cannot write to standard output \(no\): free some space"),
    ],
    ids=["a reader that has seen enough", "a full disk"],
)
def test_standard_output_that_takes_no_more(
    monkeypatch: pytest.MonkeyPatch, error: OSError, raised: type[Exception], words: str
) -> None:
    class Output(io.BytesIO):
        def flush(self) -> None:
            raise error

    monkeypatch.setattr("sys.stdout", SimpleNamespace(buffer=Output()))
    with pytest.raises(raised, match=words):
        CsvTable(None, ["file"])


def test_a_parquet_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "a.parquet"
    table = ParquetTable(file, {"file": "string", "score": "float32"})
    table.write([["\udcff.png", 1.5], ["b", None]])  # a name that is not valid Unicode
    assert not file.exists()
    table.close()
    assert parquet.read_table(file).to_pydict() == {"file": ["?.png", "b"], "score": [1.5, None]}
    again = ParquetTable(file, {"file": "string"})
    again.write([["c"]])
    again.abandon()
    assert list(tmp_path.iterdir()) == [file] and parquet.read_table(file).num_rows == 2


@pytest.mark.parametrize("when", ["__init__", "write_table", "close"])
def test_a_parquet_file_on_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    left = [OSError(errno.ENOSPC, "no")]

    def fail(*_: object) -> None:
        if left:
            (tmp_path / ".a.parquet.partial").touch()
            raise left.pop()

    def write() -> None:
        table = ParquetTable(tmp_path / "a.parquet", {"file": "string"})
        try:
            table.write([["a"]])
        except BaseException:
            table.abandon()
            raise
        table.close()

    monkeypatch.setattr(parquet.ParquetWriter, when, fail)
    with pytest.raises(UserError, match=r"cannot write .*a\.parquet \(no\): free some space"):
        write()
    assert not list(tmp_path.iterdir())
