"""The run folder: what is accepted as one, and files that are whole or absent."""

import errno
import json
import math
import os
from pathlib import Path

import pytest

from vje.errors import UserError
from vje.runs import SCHEMA, RunFolder, distinct, free_names, read_json, write_atomically, write_json


@pytest.fixture
def run(tmp_path):
    folder = RunFolder.create(tmp_path / "runs" / "first")
    folder.write("config", {"recipe": "digits"})
    return folder


# Creating and opening


def test_a_new_folder_is_made_with_its_parents(tmp_path):
    run = RunFolder.create(tmp_path / "a" / "b")
    assert run.checkpoints.is_dir()
    assert [path.name for path in run.path.iterdir()] == ["checkpoints"]


def test_what_a_run_that_never_began_left_may_be_used_again(tmp_path):
    RunFolder.create(tmp_path / "run")  # and then the data could not be read, say
    assert RunFolder.create(tmp_path / "run").path == tmp_path / "run"
    (tmp_path / "run" / "checkpoints" / "step-000000001.safetensors").touch()
    with pytest.raises(UserError, match="not empty and holds no run"):
        RunFolder.create(tmp_path / "run")


def test_a_file_in_the_place_of_the_checkpoints_is_no_run_that_never_began(tmp_path):
    (tmp_path / "checkpoints").touch()
    with pytest.raises(UserError, match="not empty and holds no run"):
        RunFolder.create(tmp_path)


def test_a_kill_while_the_config_is_written_leaves_the_folder_free(tmp_path, monkeypatch):
    run = RunFolder.create(tmp_path / "run")
    with monkeypatch.context() as killed:
        killed.setattr(Path, "replace", lambda *names: None)
        killed.setattr(Path, "unlink", lambda *names, **how: None)
        run.write("config", {})
    assert [file.suffix for file in run.path.iterdir() if file.is_file()] == [".partial"]
    assert RunFolder.create(run.path) == run
    assert next(free_names(run.path)) == run.path


def test_a_folder_that_holds_a_run_is_refused_with_its_progress(run):
    with pytest.raises(UserError, match=r"already holds a run \(no epoch finished yet\).*--resume"):
        RunFolder.create(run.path)
    run.append(run.metrics_file, {"epoch": 1, "step": 4})
    run.append(run.metrics_file, {"epoch": 2, "step": 8})
    with pytest.raises(UserError, match=r"already holds a run \(2 epochs done\)"):
        RunFolder.create(run.path)
    run.model_file.touch()
    with pytest.raises(UserError, match=r"already holds a run \(finished\)\. Choose another folder with --out\.$"):
        RunFolder.create(run.path)


def test_the_command_that_continues_a_run_can_be_pasted(tmp_path):
    run = RunFolder.create(tmp_path / "five [bold]")
    run.write("config", {})
    with pytest.raises(UserError) as error:
        RunFolder.create(run.path)
    assert f"`vje train --resume '{run.path}'`" in str(error.value)


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match="not empty and holds no run"):
        RunFolder.create(tmp_path)
    with pytest.raises(UserError, match="is a file, and a run needs a folder"):
        RunFolder.create(tmp_path / "thesis.tex")
    with pytest.raises(UserError, match="cannot write to"):
        RunFolder.create(tmp_path / "thesis.tex" / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_opening_needs_a_run_and_names_those_nearby(run, tmp_path):
    assert RunFolder.open(str(run.path)) == run
    with pytest.raises(UserError, match=r"no run at .*secnd: that path does not exist\. Runs nearby: .*first"):
        RunFolder.open(tmp_path / "runs" / "secnd")
    with pytest.raises(UserError, match=r"is not a run folder: it has no config\.json\. Runs nearby: .*first"):
        RunFolder.open(tmp_path / "runs")
    with pytest.raises(UserError, match=r"that path does not exist\.$"):
        RunFolder.open(tmp_path / "elsewhere" / "run")


def test_the_next_free_name_skips_what_is_taken(run, tmp_path):
    base = run.path
    assert next(free_names(base)) == base.with_name("first-2")
    base.with_name("first-2").touch()  # a file is in the way, too
    RunFolder.create(base.with_name("first-3"))  # never began
    base.with_name("first-3").joinpath(".lock").touch()  # and was killed
    names = free_names(base)
    assert [next(names), next(names)] == [base.with_name("first-3"), base.with_name("first-4")]
    assert next(free_names(tmp_path / "new")) == tmp_path / "new"


def test_folders_are_told_apart_by_where_they_are(run, tmp_path):
    other = RunFolder(tmp_path / "other")
    again = RunFolder(run.path / ".." / run.path.name)
    assert distinct([other, run, again, other]) == [other, run]


# Results of the model that is here


def test_weights_say_whose_a_result_is_whatever_the_times(run):
    run.model_file.touch()
    run.write("model", {"weights": "a"})
    run.write("evaluation", {"weights": "a", "finished": True})
    run.write("ood", {"weights": "b"})
    run.write("probe", {})  # does not say
    other = "of other weights than the model"
    for at in (90, 110):
        os.utime(run.path / "evaluation.json", (at, at))
        os.utime(run.model_file, (100, 100))
        assert [run.superseded(name) for name in ("evaluation", "ood", "probe")] == ["", other, ""]
    assert [run.superseded(name, "b") for name in ("evaluation", "ood", "probe")] == [other, "", ""]
    (run.path / "model.json").write_text("{")  # nothing can be told
    assert run.superseded("ood") == "" and run.superseded("ood", "c") == other


def test_results_of_a_model_that_is_trained_on_are_superseded(run):
    run.write("model", {"weights": "a"})  # the weights themselves are gone
    run.write("evaluation", {"weights": "a", "finished": True})
    run.write("ood", {"weights": "b", "finished": False})  # of a checkpoint
    assert run.superseded("evaluation") == "from before training went on"
    assert run.superseded("ood") == "" and run.superseded("evaluation", "a") == ""


def test_records_that_were_kept_without_weights_stand(run):
    for name, weights in (("evaluation", "a"), ("ood", "b")):  # b: the same without its EMA encoder, say
        run.write(name, {"weights": weights, "finished": True})
    run.checkpoints.rmdir()
    assert [run.superseded(name) for name in ("evaluation", "ood")] == ["", ""]
    run.write("model", {"weights": "a"})
    assert [run.superseded(name) for name in ("evaluation", "ood")] == ["", "of other weights than the model"]


# Small files


def test_json_comes_back_with_its_schema_and_what_json_cannot_say_as_words(run):
    run.write("config", {"nu": math.inf, "low": -math.inf, "none": math.nan, "path": Path("a/b"), "pair": (1, 2.5)})
    found = run.read("config")
    assert found == {"schema": SCHEMA, "nu": "inf", "low": "-inf", "none": "nan", "path": "a/b", "pair": [1, 2.5]}
    json.loads(run.config_file.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"a": 1', "damaged: it is not valid JSON"),
        (b"\xff\xfe\x00", "damaged: it is not valid JSON"),
        (b"[1, 2]", "damaged: it should hold a JSON object"),
        (b"[" * 100_000, "damaged: it is not valid JSON"),
        (b'{"seed": ' + b"9" * 10_000 + b"}", "damaged: it is not valid JSON"),
        (b'{"schema": "1"}', "damaged: its schema should be a number, and is '1'"),
        (b'{"schema": 99}', r"written by a newer vje \(schema 99, this one knows 1\): upgrade"),
    ],
)
def test_damaged_json_is_told_in_words(tmp_path, content, words):
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(UserError, match=words) as error:
        read_json(file)
    assert str(file) in str(error.value)


def test_missing_json_is_told_in_words(run):
    with pytest.raises(UserError, match=r"environment\.json is missing"):
        run.read("environment")


def test_a_line_cut_short_is_passed_over(run):
    run.append(run.metrics_file, {"epoch": 1, "step": 4, "loss": math.nan})
    with run.metrics_file.open("a") as stream:
        stream.write('{"epoch": 2, "st')
    assert run.metrics() == [{"epoch": 1, "step": 4, "loss": "nan"}]
    assert RunFolder(run.path / "nowhere").metrics() == []


@pytest.mark.parametrize(
    "damage", [b'{"epoch": 2, "st', b"\x00\x00\x00", b"\xff\xfe{", b"3", b"[]", b"9" * 10_000, b"[" * 100_000]
)
def test_lines_after_a_damaged_one_are_kept(run, damage):
    lines = [json.dumps({"epoch": n, "step": 4 * n}).encode() for n in (1, 2, 3, 4)]
    run.metrics_file.write_bytes(b"\n".join([lines[0], damage, *lines[2:]]) + b"\n")
    assert [record["epoch"] for record in run.metrics()] == [1, 3, 4]
    run.forget_after(12)
    assert [record["epoch"] for record in run.metrics()] == [1, 3]


def test_what_came_after_a_step_is_forgotten(run):
    for file in (run.metrics_file, run.warnings_file):
        for step in (4, 8, 12):
            run.append(file, {"step": step, "text": f"at {step}"})
    run.forget_after(8)
    assert [record["step"] for record in run.metrics()] == [4, 8]
    assert [json.loads(line)["text"] for line in run.warnings_file.read_text().splitlines()] == ["at 4", "at 8"]
    assert run.warnings() == ["at 4", "at 8"]
    run.append(run.warnings_file, {"text": "of no step"})
    run.forget_after(0)
    assert run.metrics() == [] and run.warnings() == ["of no step"]


# Whole or not at all


def test_a_line_is_on_the_disk_before_the_checkpoint_that_comes_after_it(run, monkeypatch):
    kept = []
    monkeypatch.setattr(os, "fsync", lambda number: kept.append(os.fstat(number).st_size))
    for epoch in (1, 2):
        run.append(run.metrics_file, {"epoch": epoch})
        assert kept[-1] == run.metrics_file.stat().st_size
    assert len(kept) == 2


def test_files_are_replaced_whole(tmp_path):
    file = tmp_path / "new" / "file.bin"
    write_atomically(file, b"first")
    write_atomically(file, b"second")
    assert file.read_bytes() == b"second"
    assert [path.name for path in file.parent.iterdir()] == ["file.bin"]


def test_a_value_that_cannot_be_written_leaves_the_old_file(tmp_path):
    file = tmp_path / "config.json"
    write_json(file, {"a": 1})
    with pytest.raises(TypeError):
        write_json(file, {"a": object()})
    assert read_json(file) == {"schema": SCHEMA, "a": 1}


def test_a_place_that_cannot_be_written_to_is_told_in_words(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .*other\.bin"):
        write_atomically(tmp_path / "file" / "other.bin", b"")
    run = RunFolder(tmp_path / "file")
    with pytest.raises(UserError, match=r"cannot write .*metrics\.jsonl"):
        run.append(run.metrics_file, {"epoch": 1})


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "free some space"), (errno.EACCES, "get permission"), (errno.EROFS, "mount it for writing")],
)
def test_the_remedy_is_that_of_the_reason(tmp_path, monkeypatch, number, remedy):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    run = RunFolder(tmp_path)
    monkeypatch.setattr(Path, "open", fail)
    for write in (lambda: run.append(run.metrics_file, {}), lambda: write_json(run.config_file, {})):
        with pytest.raises(UserError) as error:
            write()
        assert f"({os.strerror(number)}): {remedy}" in str(error.value)
        assert ("free some space" in str(error.value)) == (number == errno.ENOSPC)
    monkeypatch.undo()
    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(UserError, match=rf"cannot write to .*: {remedy}.*, or choose another folder with --out\.$"):
        RunFolder.create(tmp_path / "run")
