"""The map's numbers by hand: what the page's scripts are given of each image, and what a model makes of embeddings."""

import base64
import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from vje.methods.simsiam import SimSiam
from vje.methods.vje import VJE
from vje.reporting.atlas import Atlas, mappable, survey
from vje.reporting.sprites import at_most, make_sprites


def floats(*values):
    return np.array(values, np.float32)


@pytest.fixture
def six():
    """Six images of eight held out, two neighbours each; no two numbers are alike."""
    return Atlas(
        space="posterior means",
        vectors=np.zeros((6, 3), np.float32),
        places=np.stack([floats(0, 1, 2, 3, 4, 5), floats(10, 20, 30, 40, 50, 60)], 1),
        statistics={"nll": floats(-3, 8, -5, 2, 9, 0), "norm": floats(1, 2, 3, 4, 5, 6)},
        neighbours=np.array([[1, 2], [0, 3], [4, 5], [5, 4], [3, 1], [2, 0]]),
        similarity=np.linspace(0.9, -0.2, 12, dtype=np.float32).reshape(6, 2),
        names=list("abcdef"),
        pictures=make_sprites(np.zeros((6, 3, 4, 4), np.uint8)),
        labels=np.array([0, 2, 2, 5, 0, 5]),
        classes=["cat", "dog", "frog"],
        total=8,
        titles={"nll": "NLL"},
    )


def unpacked(packed):
    return np.frombuffer(base64.b64decode(packed["bytes"]), dtype=f"<{np.dtype(packed['kind']).str[1:]}")


def test_each_number_reaches_the_page_at_its_own_image(six):
    found = six.as_data()
    assert found["count"] == 6 and found["each"] == 2 and found["names"] == list("abcdef")
    assert unpacked(found["x"]).tolist() == [0, 1, 2, 3, 4, 5]
    assert unpacked(found["y"]).tolist() == [10, 20, 30, 40, 50, 60]
    assert unpacked(found["neighbours"]).tolist() == [1, 2, 0, 3, 4, 5, 5, 4, 3, 1, 2, 0]  # image after image
    assert_allclose(unpacked(found["similarity"]), np.linspace(0.9, -0.2, 12), rtol=1e-5)
    assert [(one["name"], one["title"]) for one in found["statistics"]] == [("nll", "NLL"), ("norm", "norm")]
    assert unpacked(found["statistics"][0]["values"]).tolist() == [-3, 8, -5, 2, 9, 0]


def test_the_most_typical_have_the_least_nll(six):
    found = six.as_data()
    assert found["typicality"] == "nll"
    assert (found["most"], found["least"]) == ([2, 0, 5], [4, 1, 3])  # -5, -3, 0 and 9, 8, 2


def test_classes_have_their_names_and_those_without_one_their_number(six):
    found = six.as_data()
    assert unpacked(found["labels"]).tolist() == [0, 1, 1, 2, 0, 2]
    assert found["classes"] == ["cat", "frog", "5"]
    assert replace(six, labels=np.array([0, 1, 2, 3, 1, 0])).as_data()["classes"] == ["cat", "dog", "frog", "3"]
    assert replace(six, labels=np.array([0, 7, 10**9, 0, 0, 0])).as_data()["classes"] == ["cat", "7", "1000000000"]


@pytest.mark.parametrize(
    ("statistics", "name"),
    [
        ({"isolation", "norm", "ps_nll"}, "ps_nll"),
        ({"isolation", "ps_nll", "nll"}, "nll"),
        ({"isolation", "norm", "kl"}, "isolation"),
    ],
)
def test_a_likelihood_tells_what_is_typical_where_there_is_one(six, statistics, name):
    assert replace(six, statistics=dict.fromkeys(sorted(statistics), six.statistics["nll"])).typicality == name


def test_images_whose_score_is_no_number_are_neither_typical_nor_odd(six):
    def extremes(*nll):
        return replace(six, statistics={"nll": floats(*nll)}).extremes()

    assert extremes(np.nan, 4, np.inf, 1, -np.inf, 2) == ([3], [1])
    assert extremes(np.nan, 4, np.nan, np.nan, np.nan, np.nan) == ([1], [1])  # the only one is both
    assert extremes(*[np.nan] * 6) == ([], [])


def test_a_map_of_more_images_than_sixteen_bits_number(six):
    count = 2**16 + 1
    neighbours = np.zeros((count, 1), np.int64)
    neighbours[0] = count - 1
    many = replace(
        six, places=np.zeros((count, 2), np.float32), neighbours=neighbours, names=[], labels=None, classes=None
    )
    assert unpacked(many.as_data()["neighbours"])[0] == count - 1


def cosines_of(vectors):
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit @ unit.T


def test_a_survey_of_vje_is_of_posterior_means():
    torch.manual_seed(0)
    model, z = VJE("resnet8").eval(), 3 * torch.randn(12, 256)
    with torch.no_grad():
        means = model.inference(z).mean.numpy()
    found = survey(model, z)
    assert found.space == "posterior means"
    assert_allclose(found.vectors, means, rtol=1e-5, atol=1e-6)
    cosines = cosines_of(means.astype(np.float64)) - 9 * np.eye(12)
    order = np.argsort(-cosines, axis=1)[:, :8]
    assert_array_equal(found.neighbours, order)
    assert_allclose(found.statistics["norm"], np.linalg.norm(z.numpy(), axis=1), rtol=1e-5)  # of z all the same
    assert_allclose(found.statistics["isolation"], 1 - np.sort(cosines)[:, :-9:-1].mean(1), atol=1e-5)
    assert_allclose(found.statistics["nll"], model.score_embeddings(z)["nll"].numpy(), rtol=1e-4)
    assert (found.titles["nll"], found.titles["norm"]) == ("NLL", "norm of z")
    assert found.titles["isolation"] == "distance to neighbours"


def test_a_survey_of_another_method_is_of_z():
    z = torch.tensor([[2.0, 0.0], [6.0, 8.0], [0.0, 1.0]])
    found = survey(SimSiam("resnet8").eval(), z)
    assert found.space == "embeddings z" and found.vectors.tolist() == z.tolist()
    assert found.neighbours.tolist() == [[1, 2], [2, 0], [1, 0]]
    assert_allclose(found.similarity, [[0.6, 0], [0.8, 0.6], [0.8, 0]], atol=1e-6)
    assert_allclose(found.statistics["isolation"], [0.7, 0.3, 0.6], atol=1e-6)
    assert found.statistics["norm"].tolist() == [2, 10, 1] and found.statistics.keys() == {"norm", "isolation"}


def test_a_feature_that_is_always_off_is_no_collapse():
    features = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    features[:, 2] = 0
    assert mappable(features) and not mappable(features[:4]) and not mappable(features * 0 + 1)


# Pictures


def quarters(side, channels):
    """A picture whose upper left quarter is bright, and whose upper right is half so in its first channel."""
    picture, half = np.zeros((channels, side, side), np.uint8), side // 2
    picture[:, :half, :half] = 240
    picture[0, :half, half:] = 120
    return picture


@pytest.mark.parametrize("channels", [1, 3])
def test_smaller_pictures_are_whole_and_the_right_way_up(channels):
    (found,) = at_most(quarters(64, channels)[None], 16)
    assert found.shape == (channels, 16, 16)
    assert (found[:, 2:6, 2:6] > 230).all() and (found[:, 10:14] < 10).all()
    assert (abs(found[0, 2:6, 10:14].astype(int) - 120) < 10).all() and (found[1:, 2:6, 10:14] < 10).all()


def test_pictures_that_are_small_enough_are_left_as_they_are(pictures):
    images = pictures(2, 16)
    assert at_most(images, 16) is images and at_most(images, 64) is images
    assert at_most(images, 15).shape == (2, 3, 15, 15)


def test_the_page_can_cut_a_picture_out_of_its_sheet(pictures):
    """With nothing but what the page is given; the sheet's blocks are a little larger than the pictures."""
    images = pictures(40, 20)
    images[33] = quarters(20, 3)
    found = make_sprites(images, budget=20_000).as_data()
    row, column = divmod(33, found["columns"])
    assert found["side"] == 20 and found["stride"] == 32
    with Image.open(io.BytesIO(base64.b64decode(found["sheets"][0]))) as sheet:
        left, top = column * found["stride"], row * found["stride"]
        picture = np.asarray(sheet.convert("RGB").crop((left, top, left + found["side"], top + found["side"])))
    assert (picture[2:8, 2:8] > 200).all() and (picture[12:18] < 50).all()
