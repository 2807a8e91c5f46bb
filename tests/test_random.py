"""The counter-based generator: published vectors, independence of layout, and the shape of its distributions."""

import itertools

import numpy as np
import pytest
import scipy.stats
import torch

from vje.random import Draws, Stream, philox

KNOWN_ANSWERS = [  # counter, key and result as published with the Random123 library
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def draws(seed=0, step=0, batch=64, first=0):
    return Draws(seed, step, torch.arange(first, first + batch))


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter, key, expected):
    words = philox(tuple(torch.tensor(word) for word in counter), tuple(key))
    assert [word.item() for word in words] == expected


def test_the_first_uniforms_are_the_published_words():
    """Seed, stream, step, position and block all zero is the first known answer; 24 bits of each word are used."""
    uniform = Draws(0, 0, torch.tensor([0])).uniform(Stream.VIEW_1, 4)
    assert uniform.tolist() == [[(word >> 8) / 2**24 for word in KNOWN_ANSWERS[0][2]]]


def independent_philox(counter, key):
    """The same generator in plain integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b % 2**32, (a >> 32) ^ c[3] ^ k[1], a % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def expected_uniforms(seed, stream, step, position, count):
    """The layout of the counter and the key: part of the run format."""
    blocks = [independent_philox([position, i, step % 2**32, step >> 32], [seed, stream]) for i in range(count // 4)]
    return [(word >> 8) / 2**24 for block in blocks for word in block]


def test_uniforms_are_addressed_by_seed_stream_step_and_position():
    seed, step, positions = 123456789, (5 << 32) + 7, [0, 3, 1_000_000]
    uniform = Draws(seed, step, torch.tensor(positions)).uniform(Stream.POSTERIOR, 8)
    for row, position in zip(uniform.tolist(), positions, strict=True):
        assert row == expected_uniforms(seed, Stream.POSTERIOR, step, position, 8)


def test_normals_are_box_muller_pairs_of_those_uniforms():
    u, v = np.reshape(expected_uniforms(6, Stream.VIEW_2, 4, 9, 4), (2, 2)).T
    radius = np.sqrt(-2 * np.log(1 - u))  # u may be 0, and 1 - u may not
    expected = np.stack([radius * np.cos(2 * np.pi * v), radius * np.sin(2 * np.pi * v)], 1).ravel()
    actual = Draws(6, 4, torch.tensor([9])).normal(Stream.VIEW_2, 4)
    np.testing.assert_allclose(actual[0].numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_asking_for_more_numbers_gives_the_same_ones_first(kind):
    many = getattr(draws(), kind)(Stream.VIEW_1, 50)
    for count in (1, 2, 3, 4, 7, 49):
        assert torch.equal(getattr(draws(), kind)(Stream.VIEW_1, count), many[:, :count])


@pytest.mark.parametrize("kind", ["uniform", "normal"])
@pytest.mark.parametrize("processes", [2, 4, 64])
def test_numbers_do_not_depend_on_how_the_batch_is_split(kind, processes):
    whole = getattr(draws(step=9), kind)(Stream.VIEW_2, 13)
    share = 64 // processes
    parts = [
        getattr(draws(step=9, batch=share, first=rank * share), kind)(Stream.VIEW_2, 13) for rank in range(processes)
    ]
    assert torch.equal(torch.cat(parts), whole)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(getattr(Draws(0, 9, order), kind)(Stream.VIEW_2, 13), whole[order])


@pytest.mark.parametrize("step", [0, 41, 2**31, 2**32 - 1, 2**32, 2**40 + 3])
def test_a_tensor_step_equals_an_integer_step(step):
    by_tensor, by_int = draws(step=torch.tensor(step)), draws(step=step)
    assert torch.equal(by_tensor.uniform(Stream.VIEW_1, 6), by_int.uniform(Stream.VIEW_1, 6))
    assert torch.equal(by_tensor.normal(Stream.VIEW_1, 6), by_int.normal(Stream.VIEW_1, 6))


def test_steps_beyond_32_bits_do_not_repeat():
    steps = [0, 1, 2**32 - 1, 2**32, 2**32 + 1, 2**33]
    rows = [tuple(draws(step=step, batch=1).uniform(Stream.VIEW_1, 4)[0].tolist()) for step in steps]
    assert len(set(rows)) == len(steps)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 8, 1023])
def test_any_count_has_its_shape(count):
    for numbers in (draws(batch=3).uniform(0, count), draws(batch=3).normal(0, count)):
        assert numbers.shape == (3, count)
        assert numbers.dtype == torch.float32
        assert numbers.isfinite().all()


def test_uniforms_are_uniform():
    x = draws(batch=512).uniform(Stream.VIEW_1, 400).double().numpy()
    assert x.min() >= 0
    assert x.max() < 1
    assert x.mean() == pytest.approx(1 / 2, abs=5 * np.sqrt(1 / 12 / x.size))
    assert x.var() == pytest.approx(1 / 12, abs=5 * np.sqrt(1 / 180 / x.size))
    assert scipy.stats.kstest(x.ravel(), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("count", [399, 400, 402])
def test_normals_are_normal(count):
    x = draws(batch=512).normal(Stream.POSTERIOR, count).double().numpy()
    error = 1 / np.sqrt(x.size)
    assert x.mean() == pytest.approx(0, abs=5 * error)
    assert x.var() == pytest.approx(1, abs=5 * np.sqrt(2) * error)
    assert scipy.stats.skew(x.ravel()) == pytest.approx(0, abs=5 * np.sqrt(6) * error)
    assert scipy.stats.kurtosis(x.ravel()) == pytest.approx(0, abs=5 * np.sqrt(24) * error)
    assert scipy.stats.kstest(x.ravel(), "norm").pvalue > 1e-3


def test_columns_and_rows_are_uncorrelated():
    """The features of a sample, both halves of a Box-Muller pair among them, and neighbouring samples."""
    for kind in ("uniform", "normal"):
        x = getattr(draws(batch=20_000), kind)(Stream.POSTERIOR, 16).double()
        for values in (x, x.square(), torch.cat([x[:-1, :8], x[1:, :8]], 1)):
            correlation = torch.corrcoef(values.T) - torch.eye(16, dtype=torch.float64)
            assert correlation.abs().max() < 5 / np.sqrt(20_000)


def test_streams_steps_seeds_and_positions_give_unrelated_numbers():
    settings = itertools.product([0, 1], [0, 1, 2**32], list(Stream), [0, 10_000])
    rows = torch.stack(
        [draws(seed, step, 10_000, first).uniform(stream, 4).flatten() for seed, step, stream, first in settings]
    )
    correlation = torch.corrcoef(rows.double()) - torch.eye(len(rows), dtype=torch.float64)
    assert correlation.abs().max() < 5 / np.sqrt(rows.shape[1])


def test_streams_keep_their_numbers():
    """Part of the run format; new ones are appended."""
    assert (Stream.VIEW_1, Stream.VIEW_2, Stream.POSTERIOR, Stream.SLICES) == (0, 1, 2, 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_draws_the_same_numbers():
    on_gpu = Draws(1, 2, torch.arange(64, device="cuda"))
    on_cpu = Draws(1, 2, torch.arange(64))
    assert torch.equal(on_gpu.uniform(Stream.VIEW_1, 50).cpu(), on_cpu.uniform(Stream.VIEW_1, 50))
    torch.testing.assert_close(on_gpu.normal(Stream.VIEW_1, 50).cpu(), on_cpu.normal(Stream.VIEW_1, 50))


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_would_be_another(seed):
    with pytest.raises(ValueError, match="a seed is from 0 to 4294967295"):
        Draws(seed, 0, torch.arange(2))
