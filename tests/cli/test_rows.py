import errno
from pathlib import Path

import pytest

from vje.cli.rows import CsvTable, check_header, whole_rows
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
    file.write_bytes(b"file,er")
    check_header(file, ["file", "error"])
    with pytest.raises(UserError, match="cannot be continued"):
        check_header(file, ["file", "reason"])
