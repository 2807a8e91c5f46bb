import csv
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vje.data.workers import WorkerEnded
from vje.ood.detector import ImageDetector

SOURCE = Path(__file__).resolve().parents[2] / "src"
SCORES = (
    *("nll", "nll_directional", "nll_radial", "nll_centered", "neg_elbo"),
    *("variance_trace", "neg_kl", "neg_anisotropy"),
    *("kl", "variance", "anisotropy", "cosine_mean_z"),
)
COLUMNS = ["file", *SCORES, "p_value", "outlier", "error"]


@pytest.fixture
def photos(tmp_path: Path, make_pixels) -> Path:
    """A folder as phones and people leave it."""
    root = tmp_path / "photos"
    (root / "trip" / "empty").mkdir(parents=True)
    for i, x in enumerate(make_pixels(12, 3)):
        Image.fromarray(x).resize((8 + 3 * i, 16)).save(root / f"{i:02}.{('png', 'jpg')[i % 2]}")
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = Image.open(root / "06.png").transpose(Image.Transpose.ROTATE_90)
    turned.save(root / "trip" / 'phone, "mine".png', exif=exif)
    (root / "corrupt.jpg").write_bytes((root / "01.jpg").read_bytes()[:200])
    (root / "text.png").write_text("no picture")
    (root / "zero.png").touch()
    (root / "notes.txt").write_text("twelve photos")
    return root


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def read(file: Path) -> list[dict[str, str]]:
    return table(file.read_text(encoding="utf-8"))


def test_folder_of_everything(vje, run: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.csv"
    answer = vje("score", run, photos, "--out", out, "--batch", 4)
    assert answer.status == 0 and answer.out == ""
    assert "13 images scored" in answer.err and "4 files unreadable" in answer.err
    assert "has no calibration" in answer.err
    rows = read(out)
    assert list(rows[0]) == COLUMNS
    names = [str(Path(row["file"]).relative_to(photos)) for row in rows]
    assert names == sorted(names) and len(names) == 17
    by_name = dict(zip(names, rows, strict=True))
    for name, reason in (
        ("text.png", "not an image"), ("notes.txt", "not an image"), ("zero.png", "empty"), ("corrupt.jpg", ""),
    ):  # fmt: skip
        bad = by_name.pop(name)
        assert bad["error"] and reason in bad["error"]
        assert not any(bad[column] for column in COLUMNS[1:-1])
    for row in by_name.values():
        assert all(np.isfinite(float(row[name])) for name in SCORES)
        assert row["p_value"] == row["outlier"] == row["error"] == ""
    phone, upright = by_name['trip/phone, "mine".png'], by_name["06.png"]
    assert float(phone["nll"]) == pytest.approx(float(upright["nll"]), rel=1e-5)
    files = [row["file"] for row in by_name.values()]
    expected = ImageDetector.from_run(run, "cpu").score(files)
    for name in SCORES:
        assert [float(row[name]) for row in by_name.values()] == pytest.approx(expected[name].tolist(), rel=1e-4)


def test_several_paths_and_names(vje, run: Path, photos: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths = ["photos/03.jpg", "photos/notes.txt", "photos/trip/empty", "photos/trip"]
    answer = vje("score", run, *paths)
    assert answer.status == 0 and "no images under photos/trip/empty" in answer.err
    rows = table(answer.out)
    assert [row["file"] for row in rows] == [*paths[:2], 'photos/trip/phone, "mine".png']
    assert [bool(row["error"]) for row in rows] == [False, True, False]


def test_arrays_and_splits(vje, run: Path, tmp_path: Path, make_pixels) -> None:
    data = tmp_path / "set.npz"
    rows = table(vje("score", run, data, "--split", "train").out)
    assert len(rows) == 50 and rows[7]["file"] == f"{data}:train[7]"
    expected = ImageDetector.from_run(run, "cpu").score(make_pixels(50, 1).transpose(0, 3, 1, 2))["nll"]
    assert [float(row["nll"]) for row in rows] == pytest.approx(expected.tolist(), rel=1e-4)
    answer = vje("score", run, data)
    assert table(answer.out)[59]["file"] == f"{data}[59]"
    assert "set: its test split is taken, 60 of 110 images; --split train takes another" in answer.err


def test_of_a_folder_with_splits_which_part_is_taken_is_said(vje, run: Path, tmp_path: Path, make_pixels) -> None:
    """A score of the folder is of all images; a calibration is of its test images."""
    for i, x in enumerate(make_pixels(7, 5)):
        folder = tmp_path / "mine" / ("train" if i < 4 else "test")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(x).save(folder / f"{i}.png")
    said = "mine: its test split is taken, 3 of 7 images; --split train takes another"
    answer = vje("calibrate", run, "--data", tmp_path / "mine")
    assert "nll of 3 images" in answer.out and said in answer.err
    answer = vje("calibrate", run, "--data", tmp_path / "mine", "--split", "train")
    assert "nll of 4 images" in answer.out and "is taken" not in answer.err
    answer = vje("score", run, tmp_path / "mine")
    assert len(table(answer.out)) == 7 and "is taken" not in answer.err
    answer = vje("embed", run, tmp_path / "set.npz", "--out", tmp_path / "z.npz")
    assert answer.status == 0 and "set: its test split is taken, 60 of 110 images" in answer.err


def test_standard_output_holds_the_table_alone(vje, run: Path, photos: Path) -> None:
    answer = vje("score", run, photos, "--out", "-")
    assert len(table(answer.out)) == 17 and answer.out.startswith("file,nll,")


def test_features(vje, run: Path, photos: Path) -> None:
    rows = [row for row in table(vje("score", run, photos, "--explain", 3).out) if not row["error"]]
    terms = ImageDetector.from_run(run, "cpu").score([row["file"] for row in rows], explain=True)["contributions"]
    values, indices = terms.topk(3)
    for row, top, index in zip(rows, values.tolist(), indices.tolist(), strict=True):
        pairs = [pair.split(":") for pair in row["features"].split(" ")]
        assert [int(i) for i, _ in pairs] == index
        assert [float(v) for _, v in pairs] == pytest.approx(top, rel=1e-3)


def test_sheet(vje, run: Path, photos: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    answer = vje("score", run, photos, "--top", 11, "--sheet", sheet)
    assert answer.status == 0 and "13 images drawn" in answer.err  # all there are, each once
    assert min(Image.open(sheet).size) > 400
    assert vje("score", run, photos, "--sheet", sheet).status == 2
    (tmp_path / "none.png").write_text("no picture")
    answer = vje("score", run, tmp_path / "none.png", "--sheet", tmp_path / "none.jpg")
    assert answer.status == 0 and "no image could be read for the sheet" in answer.err


def test_the_sheet_is_no_photo_of_the_folder_by_whatever_path(vje, run: Path, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(photos, target_is_directory=True)
    for place, sheet in ((photos, "link"), (tmp_path / "link", "photos")):
        out = tmp_path / f"{sheet}.csv"
        assert vje("score", run, place, "--out", out, "--sheet", tmp_path / sheet / "sheet.png").status == 0
        again = vje("score", run, place, "--out", out, "--append", "--sheet", tmp_path / sheet / "sheet.png")
        assert again.status == 0 and len(read(out)) == 17
        (photos / "sheet.png").unlink()


def test_parquet(vje, run: Path, photos: Path, tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "scores.parquet"
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    answer = vje("score", run, photos, "--out", out)
    assert answer.status == 2 and "needs pyarrow" in answer.err
    monkeypatch.undo()
    parquet = pytest.importorskip("pyarrow.parquet")
    vje("calibrate", run)
    assert vje("score", run, photos, "--out", out, "--explain", 2, "--batch", 5).status == 0
    expected = table(vje("score", run, photos, "--explain", 2, "--batch", 5).out)
    found = parquet.read_table(out).to_pylist()
    assert [{k: "" if v is None else str(v) for k, v in row.items()} for row in found] == expected
    assert not list(tmp_path.glob(".*"))


def test_mistakes_are_found_first(vje, run: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.csv"
    out.write_text("something else\n")
    for arguments, message in (
        ((run, photos, "--out", out), "exists already"),
        ((run, photos, "--out", out, "--append"), "cannot be continued: its columns"),
        ((run, photos, "--append"), "--append continues a CSV file"),
        ((run, photos, "--out", "x.parquet", "--append"), "--append continues a CSV file"),
        ((run, photos, "--out", "x.txt"), "must end in .csv or .parquet"),
        ((run, photos, "--out", tmp_path / "gone" / "x.csv"), "there is no folder"),
        ((run, photos, "--sheet", "x.doc"), "must end in .png"),
        ((run, photos, "--alpha", "5"), "between 0 and 1"),
        ((run, photos, "--batch", "0"), "--batch must be at least 1"),
        ((run, photos / "gone"), "does not exist"),
        ((run, photos, tmp_path / "set.npz"), "taken alone"),
        ((run,), "no images were named"),
        ((tmp_path / "gone", photos), "no run or model at"),
    ):
        answer = vje("score", *arguments)
        assert answer.status == 2 and message in answer.err and answer.out == "", arguments
    assert out.read_text() == "something else\n"
    assert vje("score", run, photos, "--out", out, "--force").status == 0
    assert len(read(out)) == 17


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_an_empty_folder_has_no_rows(vje, run: Path, photos: Path, ending: str) -> None:
    out = photos / "trip" / "empty" / f"scores.{ending}"  # which is not scored itself
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    for more in ([], ["--force"]):
        answer = vje("score", run, out.parent, "--out", out, "--sheet", photos / "sheet.png", *more)
        assert answer.status == 0 and "0 images scored" in answer.err
        assert not (photos / "sheet.png").exists()
    if ending == "csv":
        assert out.read_text() == ",".join(COLUMNS) + "\n"
        assert vje("score", run, out.parent, "--out", out, "--append").status == 0
        assert read(out) == []
    assert vje("score", run, photos / "trip" / "empty" / "no").status == 2


def test_other_names_are_tried_and_hidden_files_are_not(vje, run: Path, photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    (photos / "06.png").rename(folder / "picture without an ending")
    (folder / ".DS_Store").write_text("hidden")
    (folder / "gone.png").symlink_to(folder / "nowhere.png")
    rows = {Path(row["file"]).name: row for row in table(vje("score", run, folder).out)}
    assert rows.keys() == {"picture without an ending", "gone.png"}
    assert rows["picture without an ending"]["nll"] and rows["gone.png"]["error"]


def test_help_states_the_guarantee(vje) -> None:
    answer = vje("score", "--help")
    assert answer.status == 0
    text = " ".join(answer.out.split())
    for word in ("split conformal", "exchangeable", "marginally", "with probability --alpha at most"):
        assert word in text


@pytest.fixture
def many_files(make_pixels):
    def make(folder: Path, count: int) -> Path:
        folder.mkdir()
        for i, x in enumerate(make_pixels(count, 4)):
            Image.fromarray(x).save(folder / f"{i:04}.png")
        (folder / f"{count // 2:04}.png").write_text("no picture")
        return folder

    return make


def test_killed_process_is_continued(vje, run: Path, tmp_path: Path, many_files) -> None:
    """What was written survives SIGKILL, and --append gives what an uninterrupted job gives, each file once."""
    folder = many_files(tmp_path / "many", 600)
    vje("calibrate", run)
    whole, out = tmp_path / "whole.csv", tmp_path / "scores.csv"
    options = ["--batch", "16", "--workers", "2", "--device", "cpu", "--explain", "2"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "vje", "score", run, folder, "--out", out, *options],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while (not out.exists() or out.stat().st_size < 8000) and time.monotonic() < deadline:
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    killed = out.read_bytes()
    before = killed.count(b"\n") - 1
    assert 20 < before < 599  # whole rows; the kernel may have been stopped within one, which is then made again
    assert vje("score", run, folder, "--out", whole, *options).status == 0
    assert whole.read_bytes().startswith(killed)

    answer = vje("score", run, folder, "--out", out, "--append", *options)
    assert answer.status == 0 and f"{before} were there before" in answer.err
    assert out.read_bytes() == whole.read_bytes()
    files = [row["file"] for row in read(out)]
    assert len(files) == len(set(files)) == 600
    assert vje("score", run, folder, "--out", out, "--append", *options).status == 0  # nothing is left to do
    assert out.read_bytes() == whole.read_bytes()


def test_torn_files_are_continued(vje, run: Path, photos: Path, tmp_path: Path, monkeypatch) -> None:
    """Cut anywhere, also within quotes or the header, and named in another way: the result is the same."""
    (photos / "trip" / "two\nlines.png").write_bytes((photos / "00.png").read_bytes())
    whole, out, sheet = tmp_path / "whole.csv", tmp_path / "scores.csv", tmp_path / "sheet.png"
    monkeypatch.chdir(tmp_path)
    assert vje("score", run, "photos", "--out", whole, "--batch", 4).status == 0
    content = whole.read_bytes()
    broken = content.index(b"two\nlines") + 4
    ends = [i for i, byte in enumerate(content) if byte == ord("\n")]
    for cut in (0, 5, ends[0], ends[0] + 1, ends[5], ends[5] + 1, ends[5] + 40, broken, len(content) - 1, len(content)):
        out.write_bytes(content[:cut])
        assert vje("score", run, "photos", "--out", out, "--batch", 4, "--append").status == 0
        assert out.read_bytes() == content, cut
    answer = vje("score", run, "photos", "--out", out, "--append", "--top", 2, "--sheet", sheet)
    assert answer.status == 0 and "4 images drawn" in answer.err  # of those that were there before
    before = out.read_bytes()
    assert vje("score", run, photos, "--out", out, "--append").status == 0  # an absolute path to the same files
    assert out.read_bytes() == before


def test_new_files_are_added(vje, run: Path, photos: Path, tmp_path: Path, make_pixels) -> None:
    out = tmp_path / "scores.csv"
    vje("score", run, photos, "--out", out)
    first = out.read_bytes()
    Image.fromarray(make_pixels(1, 9)[0]).save(photos / "00-new.png")
    vje("score", run, photos, "--out", out, "--append")
    assert out.read_bytes().startswith(first)
    assert [Path(row["file"]).name for row in read(out)[17:]] == ["00-new.png"]


def test_rows_that_mean_something_else_are_not_mixed(vje, run: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.csv"
    append = ("score", run, photos, "--out", out, "--append")
    assert vje(*append).status == 0
    answer = vje(*append, "--explain", 2)
    assert answer.status == 2 and "its columns are not" in answer.err
    vje("calibrate", run)
    answer = vje(*append)
    assert answer.status == 2 and "another calibration, or none" in answer.err
    assert vje("score", run, photos, "--out", out, "--force").status == 0
    answer = vje(*append, "--alpha", 0.9)
    assert answer.status == 2 and "another --alpha" in answer.err
    assert vje(*append).status == 0


def test_outliers_are_counted_among_all_rows(vje, run: Path, photos: Path, tmp_path: Path) -> None:
    """Also those that were there before, and by another --alpha where no row tells the two apart."""
    out = tmp_path / "scores.csv"
    vje("calibrate", run)
    words = ("score", run, photos, "--out", out)
    assert vje(*words, "--alpha", 0.5).status == 0
    rows, before = read(out), out.read_text().splitlines(keepends=True)
    count = sum(row["outlier"] == "True" for row in rows)
    largest = max(float(row["p_value"]) for row in rows if row["outlier"] == "True")
    assert 0 < count < len(rows)
    for kept in (len(before), len(before) - 5):
        out.write_text("".join(before[:kept]))
        answer = vje(*words, "--append", "--alpha", largest)
        assert answer.status == 0, answer.err
        assert f"{kept - 1} were there before" in answer.err
        assert f"; {count} outlier{'s' * (count != 1)} among all at a false-alarm rate of" in answer.err


def test_two_models_scores_are_not_mixed(vje, run: Path, photos: Path, tmp_path: Path) -> None:
    import vje as library

    other = library.load(run)
    with torch.no_grad():
        other.inference.mean.weight.add_(0.1)
    other.save(tmp_path / "other")
    out = tmp_path / "scores.csv"
    assert vje("score", run, photos, "--out", out).status == 0
    before = out.read_bytes()
    answer = vje("score", tmp_path / "other" / "model.safetensors", photos, "--out", out, "--append")
    assert answer.status == 2 and "begun with another model" in answer.err
    answer = vje("score", run, photos, "--out", out, "--append", "--views", "mirror")
    assert answer.status == 2 and "or other --views" in answer.err
    assert out.read_bytes() == before


def test_no_image_is_both_among_the_most_and_the_least_typical(vje, run: Path, tmp_path: Path, many_files) -> None:
    folder, sheet = many_files(tmp_path / "few", 7), tmp_path / "s.png"
    answer = vje("score", run, folder, "--out", tmp_path / "a.csv", "--sheet", sheet)
    assert answer.status == 0 and "6 images drawn" in answer.err  # one file is unreadable


def test_memory_does_not_grow(vje, run: Path, tmp_path: Path, monkeypatch, many_files) -> None:
    """Only the extremes for the sheet are kept, and rows leave with their batch."""
    from vje.cli import rows
    from vje.cli.score_job import ScoringJob

    jobs, written = [], []
    remember = ScoringJob.__init__
    monkeypatch.setattr(ScoringJob, "__init__", lambda job, *a: (remember(job, *a), jobs.append(job))[0])
    write = rows.CsvTable.write
    monkeypatch.setattr(rows.CsvTable, "write", lambda table, new: (written.append(len(new)), write(table, new))[1])
    folder = many_files(tmp_path / "many", 50)
    sheet = tmp_path / "s.png"
    assert (
        vje("score", run, folder, "--out", tmp_path / "a.csv", "--batch", 8, "--top", 3, "--sheet", sheet).status == 0
    )
    assert written == [1, 8, 8, 8, 8, 8, 8, 2]
    assert len(jobs[0].extremes.highest()) == len(jobs[0].extremes.lowest()) == 3


@pytest.mark.parametrize(
    "error",
    [
        WorkerEnded("a process that decodes images was ended from outside."),
        RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "),  # torch's, at work on a batch
    ],
)
def test_when_a_decoding_process_is_killed_the_rest_can_be_appended(
    vje, run: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    whole, out = tmp_path / "whole.csv", tmp_path / "scores.csv"
    assert vje("score", run, photos, "--out", whole, "--batch", 4).status == 0
    stream = ImageDetector.stream

    def die(*arguments, **options):
        yield next(stream(*arguments, **options))
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(ImageDetector, "stream", die)
        answer = vje("score", run, photos, "--out", out, "--batch", 4)
    assert answer.status == 2
    assert "a process that decodes images was ended from outside" in answer.err
    assert f"{out} keeps what was done. To go on, add --append to the command." in answer.err
    assert 0 < len(read(out)) < len(read(whole))
    assert vje("score", run, photos, "--out", out, "--batch", 4, "--append").status == 0
    assert [row["file"] for row in read(out)] == [row["file"] for row in read(whole)]


def test_a_score_that_is_no_number_is_told_before_anything_is_added(
    vje, run: Path, photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "scores.csv"
    assert vje("score", run, photos, "--out", out).status == 0
    lines = out.read_text().splitlines()
    place = next(i for i, line in enumerate(lines[1:], 1) if line.split(",")[1])
    cells = lines[place].split(",")
    lines[place] = ",".join([cells[0], "abc", *cells[2:]])
    out.write_text("\n".join(lines) + "\n")
    before = out.read_bytes()
    answer = vje("score", run, photos, "--out", out, "--append")
    assert answer.status == 2 and "has 'abc' where a score should be" in answer.err
    assert out.read_bytes() == before


def test_files_that_could_not_be_read_are_counted_apart_when_more_is_added(vje, run: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "scores.csv"
    folder.mkdir()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / "a.png")
    (folder / "b.png").write_text("no picture")
    assert vje("score", run, folder, "--out", out).status == 0
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / "b.png")
    answer = vje("score", run, folder, "--out", out, "--append")
    assert "2 were there before, 1 of them unreadable then and not tried again" in answer.err
