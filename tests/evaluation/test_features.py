"""Features of whole data sets: computed as the model would, kept by weights and data, damaged caches passed over."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from vje.data import sources
from vje.data.decode import UnreadableImage
from vje.data.folders import scan_folder
from vje.data.sources import ArraySource
from vje.errors import UserError
from vje.evaluation import features as module
from vje.evaluation.features import cached_features, compute_features, embed_pixels, weights_fingerprint


def pixels(source):
    return torch.from_numpy(source.planes(range(len(source))))


def same(a, b):
    assert torch.equal(a.z, b.z)
    assert (a.target is None) == (b.target is None)
    assert a.target is None or torch.equal(a.target, b.target)
    assert torch.equal(a.kept, b.kept)
    assert a.failures == b.failures
    assert (a.labels is None) == (b.labels is None)
    assert a.labels is None or torch.equal(a.labels, b.labels)


@pytest.fixture
def never_again(monkeypatch):
    """Call it, and from then on nothing may be computed."""

    def forbid():
        monkeypatch.setattr(module, "compute_features", lambda *_: pytest.fail("computed again"))

    return forbid


def test_they_are_the_models_embeddings(make_model, make_source):
    model, source = make_model(), make_source()
    found = compute_features(model, source)
    with torch.no_grad():
        assert torch.allclose(found.z, model.embed(pixels(source)), atol=1e-5)
        prepared = model.preprocessing.normalize(model.preprocessing.fit(pixels(source)))
        assert torch.allclose(found.target, model.target(prepared), atol=1e-5)
    assert found.z.shape == (20, 24)
    assert found.z.dtype == torch.float32
    assert not torch.allclose(found.z, found.target, atol=1e-2)
    assert found.kept.tolist() == list(range(20))
    assert found.labels.tolist() == source.labels.tolist()
    assert found.failures == []


def test_pixels_some_at_a_time(make_model, make_source):
    model, source = make_model(), make_source()
    images = model.preprocessing.fit(pixels(source))
    with torch.no_grad():
        prepared = model.preprocessing.normalize(images)
        z, target = model.encoder(prepared), model.target(prepared)
    for rows in (7, 20, 99):
        found = embed_pixels(model, images, rows)
        assert torch.allclose(found[0], z, atol=1e-5) and torch.allclose(found[1], target, atol=1e-5)
        assert not found[0].requires_grad and embed_pixels(model, images, rows, target=False)[1] is None


def test_without_an_ema_and_without_labels(make_model, make_source):
    found = compute_features(make_model(target="stop-gradient"), make_source(labelled=False))
    assert found.target is None
    assert found.labels is None


def test_the_rest_of_the_batch_does_not_matter_and_nothing_is_learned(make_model, make_source):
    model = make_model()
    before = copy.deepcopy(model.state_dict())
    whole, pieces = compute_features(model, make_source()), compute_features(model, make_source(), batch_size=3)
    assert torch.allclose(whole.z, pieces.z, atol=1e-5)
    assert torch.equal(whole.kept, pieces.kept)
    assert all(torch.equal(before[name], x) for name, x in model.state_dict().items())
    assert not whole.z.requires_grad


def test_progress_is_reported(make_model, make_source):
    told = []
    compute_features(make_model(), make_source(), batch_size=8, report=lambda *numbers: told.append(numbers))
    assert told == [(8, 20), (16, 20), (20, 20)]


def test_the_second_time_they_are_read(make_model, make_source, tmp_path, never_again):
    model, source = make_model(), make_source()
    first = cached_features(model, source, tmp_path / "cache")
    never_again()
    same(cached_features(model, source, tmp_path / "cache"), first)
    same(cached_features(copy.deepcopy(model), make_source(), tmp_path / "cache"), first)
    relabelled = cached_features(model, source.labelled(np.zeros(20, int)), tmp_path / "cache")
    assert relabelled.labels.tolist() == [0] * 20  # labels are not part of the features
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_weights_and_data_are_the_key(make_model, make_source, tmp_path):
    model, source = make_model(), make_source()
    cached_features(model, source, tmp_path)

    def is_new(other_model, other_source):
        before = set(tmp_path.iterdir())
        found = cached_features(other_model, other_source, tmp_path)
        same(found, compute_features(other_model, other_source))
        return len(set(tmp_path.iterdir()) - before) == 1

    changed = make_model()
    with torch.no_grad():
        next(changed.encoder.parameters()).view(-1)[0] += 1e-3
    assert is_new(changed, source)
    statistics = make_model()
    next(b for name, b in statistics.encoder.named_buffers() if name.endswith("running_mean"))[0] += 1e-3
    assert is_new(statistics, source)
    brighter = make_model(preprocessing=replace(model.preprocessing, mean=(0.4, 0.5, 0.5)))
    assert is_new(brighter, source)
    touched = source.images.copy()
    touched[3, 4, 5, 1] ^= 1
    assert is_new(model, ArraySource(touched, source.labels))
    assert is_new(model, source.subset(range(19)))
    assert is_new(model, source.subset([1, 0, *range(2, 20)]))
    assert not is_new(make_model(), make_source())


def test_fingerprints_are_stable(make_model):
    assert weights_fingerprint(make_model()) == weights_fingerprint(make_model())
    assert weights_fingerprint(make_model()) != weights_fingerprint(make_model(seed=1))
    assert weights_fingerprint(make_model()) != weights_fingerprint(make_model(target="stop-gradient"))


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file):
    file.write_bytes(b"")


def text(file):
    file.write_text("these are no features")


def no_note(file):
    save_file({"z": torch.zeros(20, 24), "kept": torch.arange(20)}, file)


def bad_note(file):
    save_file({"z": torch.zeros(20, 24), "kept": torch.arange(20)}, file, metadata={"failures": "[["})


def no_index(file):
    save_file({"z": torch.zeros(20, 24)}, file, metadata={"failures": "[]"})


def wrong_index(file):
    save_file({"z": torch.zeros(20, 24), "kept": torch.arange(20) + 9}, file, metadata={"failures": "[]"})


@pytest.mark.parametrize("damage", [cut, empty, text, no_note, bad_note, no_index, wrong_index])
def test_a_damaged_cache_is_written_again(damage, make_model, make_source, tmp_path, never_again):
    model, source = make_model(), make_source()
    first = cached_features(model, source, tmp_path)
    (file,) = tmp_path.iterdir()
    damage(file)
    same(cached_features(model, source, tmp_path), first)
    never_again()
    same(cached_features(model, source, tmp_path), first)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_files_are_left_out_and_labels_stay_aligned(workers, make_model, make_source, tmp_path):
    images, folder, cache = make_source(12).images, tmp_path / "pictures", tmp_path / "cache"
    for i, image in enumerate(images):
        path = folder / "abc"[i % 3] / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    bad = folder / "b" / "04.png"
    bad.write_bytes(bad.read_bytes()[:90])
    (folder / "c" / "11.png").write_text("hello")
    source = scan_folder(folder)
    model = make_model()
    first = cached_features(model, source, cache, 5, workers)
    readable = [i for i, name in enumerate(source.names) if name not in ("b/04.png", "c/11.png")]
    assert first.kept.tolist() == readable
    assert first.labels.tolist() == source.labels[readable].tolist()
    assert [name for name, _ in first.failures] == ["b/04.png", "c/11.png"]
    assert all(reason for _, reason in first.failures)
    expected = model.embed(torch.from_numpy(images[[int(source.names[i][2:4]) for i in readable]]).permute(0, 3, 1, 2))
    assert torch.allclose(first.z, expected, atol=1e-5)
    same(cached_features(model, source, cache), first)


def test_mistakes(make_model, make_source, tmp_path):
    with pytest.raises(UserError, match="no preprocessing"):
        compute_features(make_model(preprocessing=None), make_source())
    for i in range(3):
        (tmp_path / f"{i}.png").touch()
    with pytest.raises(UserError, match=r"none of the 3 images of .* could be read; 0\.png: the file is empty"):
        compute_features(make_model(), scan_folder(tmp_path))


def test_without_the_target_if_it_is_not_wanted(make_model, make_source, tmp_path, never_again):
    model, source = make_model(), make_source()
    plain = cached_features(model, source, tmp_path, target=False)
    assert plain.target is None
    whole = cached_features(model, source, tmp_path)  # wanted now: computed again, over what was there
    assert whole.target is not None and torch.equal(whole.z, plain.z)
    never_again()
    assert torch.equal(cached_features(model, source, tmp_path, target=False).z, plain.z)


def test_a_folder_that_cannot_be_written_to_only_costs_time(make_model, make_source, tmp_path):
    (tmp_path / "cache").write_text("in the way")
    model, source = make_model(), make_source()
    assert torch.equal(cached_features(model, source, tmp_path / "cache").z, compute_features(model, source).z)


def test_a_file_that_can_be_read_again_is_read_again(make_model, make_source, tmp_path, monkeypatch):
    folder, cache, model = tmp_path / "pictures", tmp_path / "cache", make_model()
    folder.mkdir()
    for i, image in enumerate(make_source(5).images):
        Image.fromarray(image).save(folder / f"{i}.png")
    source, read = scan_folder(folder), sources.read_image

    def broken(path, *rest):
        if path.name == "3.png":
            raise UnreadableImage(str(path), "no decoder")
        return read(path, *rest)

    with monkeypatch.context() as away:
        away.setattr(sources, "read_image", broken)
        for _ in range(2):  # the second time from the cache
            assert cached_features(model, source, cache).kept.tolist() == [0, 1, 2, 4]
    assert cached_features(model, source, cache).kept.tolist() == [0, 1, 2, 3, 4]
