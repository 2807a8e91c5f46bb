"""Checkpoints: exact, atomic, few, and never trusted."""

import io
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vje.errors import UserError
from vje.training import checkpoint
from vje.training.checkpoint import BadCheckpoint


def take(step, count):
    for _ in range(count):
        epoch, first = divmod(int(step.state.step), step.batches.steps_per_epoch)
        step.batches.start_epoch(epoch, first)
        step()


def assert_same(first, second):
    assert first.keys() == second.keys()
    pairs = {name: (first[name], second[name]) for name in first}
    assert [name for name, (a, b) in pairs.items() if a.dtype != b.dtype or not torch.equal(a, b)] == []


def names(folder):
    return sorted(file.name for file in folder.iterdir())


@pytest.fixture
def folder(tmp_path):
    """Two checkpoints, of steps 2 and 3."""
    folder = tmp_path / "checkpoints"
    for number in (2, 3):
        tensors = {"method.w": torch.arange(1000.0) + number, "random.cpu": torch.get_rng_state()}
        checkpoint.write(folder, checkpoint.Checkpoint(tensors, {"step": number, "elapsed": 0.5}))
    return folder


# Round trip


def test_a_restored_step_goes_on_bit_for_bit(make_step, tmp_path):
    step = make_step(norm="batch")
    take(step, 4)
    torch.manual_seed(11)
    info = {"step": 4, "elapsed": 1.25, "watch": {"said": ["rank"], "peak_rank": 3.5}}
    captured = checkpoint.capture(step, info)
    file = checkpoint.write(tmp_path, captured)
    assert file.name == "step-000000004.safetensors"
    draw = torch.randn(3)
    take(step, 3)

    found = checkpoint.read(file)
    assert found.info == info
    assert_same(found.tensors, captured.tensors)
    kinds = {name.split(".")[0] for name in found.tensors}
    assert kinds == {"method", "optimizer", "state", "random"}
    assert any(name.startswith("method.target.") for name in found.tensors)
    other = make_step(norm="batch", initial_seed=99)
    checkpoint.restore(other, found)
    assert torch.equal(torch.randn(3), draw)
    take(other, 3)
    after, expected = (checkpoint.capture(x, {}).tensors for x in (other, step))
    del after["random.cpu"], expected["random.cpu"]
    assert_same(after, expected)


def test_what_was_captured_does_not_change_with_the_step(make_step):
    step = make_step()
    captured = checkpoint.capture(step, {"step": 0})
    before = {name: x.clone() for name, x in captured.tensors.items()}
    take(step, 1)
    assert_same(captured.tensors, before)


def test_another_model_s_checkpoint_is_refused_before_anything_is_written(make_step):
    batch, group = make_step(norm="batch"), make_step(norm="group", initial_seed=1)
    before = checkpoint.capture(group, {}).tensors
    with pytest.raises(UserError, match=r"does not fit this model: 6 tensors differ, such as method\.encoder"):
        checkpoint.restore(group, checkpoint.capture(batch, {}))
    assert_same(checkpoint.capture(group, {}).tensors, before)


# Files that are no checkpoints


def cut_in_half(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def cut_by_a_byte(file):
    file.write_bytes(file.read_bytes()[:-1])


def cut_to_nothing(file):
    file.write_bytes(b"")


def random_bytes(file):
    file.write_bytes(torch.randint(0, 256, (5000,), dtype=torch.uint8).numpy().tobytes())


def pickled(file):
    torch.save({"method.w": torch.zeros(3), "step": 3}, file)


def another_program_s(file):
    save_file({"w": torch.zeros(3)}, file, metadata={"format": "pt"})


def without_a_header(file):
    save_file({"w": torch.zeros(3)}, file)


def without_information(file):
    save_file({"w": torch.zeros(3)}, file, metadata={"format": checkpoint.FORMAT})


def with_broken_information(file):
    save_file({"w": torch.zeros(3)}, file, metadata={"format": checkpoint.FORMAT, "info": '{"step": '})


def a_folder(file):
    file.unlink()
    file.mkdir()


DAMAGES = {
    cut_in_half: "cut short or foreign",
    cut_by_a_byte: "cut short or foreign",
    cut_to_nothing: "cut short or foreign",
    random_bytes: "cut short or foreign",
    pickled: "cut short or foreign",
    another_program_s: "not a checkpoint of this program",
    without_a_header: "not a checkpoint of this program",
    without_information: "cut short or foreign",
    with_broken_information: "cut short or foreign",
    a_folder: "cut short or foreign",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_bad_file_is_refused_and_the_one_before_it_used(folder, damage):
    file = folder / "step-000000003.safetensors"
    damage(file)
    with pytest.raises(BadCheckpoint, match=DAMAGES[damage]) as error:
        checkpoint.read(file)
    assert str(file) in str(error.value)
    found, complaints = checkpoint.newest(folder)
    assert found.info == {"step": 2, "elapsed": 0.5}
    assert torch.equal(found.tensors["method.w"], torch.arange(1000.0) + 2)
    assert complaints == [str(error.value)]


class Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return (os.mkdir, (str(self.target),))


def test_a_pickle_is_never_executed(folder, tmp_path):
    target = tmp_path / "executed"
    file = folder / "step-000000003.safetensors"
    torch.save(Bomb(target), file)
    checkpoint.newest(folder)
    with pytest.raises(BadCheckpoint):
        checkpoint.read(file)
    assert not target.exists()
    torch.load(io.BytesIO(file.read_bytes()), weights_only=False)  # the bomb is a live one
    assert target.exists()


def test_nothing_is_found_where_all_are_bad_or_none_is(folder, tmp_path):
    for file in folder.iterdir():
        cut_in_half(file)
    found, complaints = checkpoint.newest(folder)
    assert found is None
    assert len(complaints) == 2
    assert checkpoint.newest(tmp_path / "nowhere") == (None, [])


# Writing


def test_only_the_newest_are_kept(folder):
    for number in (10, 9_999, 999_999_999):
        checkpoint.write(folder, checkpoint.Checkpoint({"x": torch.zeros(1)}, {"step": number}))
    assert names(folder) == ["step-000009999.safetensors", "step-999999999.safetensors"]


def test_bad_files_of_later_steps_do_not_crowd_out_good_ones(folder):
    for number in (7, 8):
        random_bytes(folder / f"step-{number:09d}.safetensors")
    assert len(checkpoint.newest(folder)[1]) == 2
    checkpoint.write(folder, checkpoint.Checkpoint({"x": torch.zeros(1)}, {"step": 4}))
    assert names(folder) == ["step-000000003.safetensors", "step-000000004.safetensors"]


def test_what_a_killed_writer_left_is_removed(folder):
    (folder / ".step-000000004.safetensors.123.partial").write_bytes(b"half")
    assert checkpoint.newest(folder)[0].info["step"] == 3
    checkpoint.write(folder, checkpoint.Checkpoint({"x": torch.zeros(1)}, {"step": 4}))
    assert names(folder) == ["step-000000003.safetensors", "step-000000004.safetensors"]


@pytest.mark.parametrize("failing", [(Path, "replace"), (os, "fsync")])
@pytest.mark.parametrize("number", [3, 4])
def test_a_write_that_fails_leaves_what_was_there(folder, monkeypatch, failing, number):
    before = {file.name: file.read_bytes() for file in folder.iterdir()}

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*failing, fail)
    with pytest.raises(UserError, match="No space left on device"):
        checkpoint.write(folder, checkpoint.Checkpoint({"x": torch.zeros(1)}, {"step": number}))
    monkeypatch.undo()
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert checkpoint.newest(folder)[0].info["step"] == 3


def test_an_interrupted_write_leaves_no_rubbish(folder, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.write(folder, checkpoint.Checkpoint({"x": torch.zeros(1)}, {"step": 4}))
    assert names(folder) == ["step-000000002.safetensors", "step-000000003.safetensors"]
