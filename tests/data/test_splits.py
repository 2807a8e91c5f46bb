import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vje.data.registry import RawSplits
from vje.data.sources import ArraySource, FolderSource
from vje.data.splits import apply_split, prepare_splits
from vje.errors import UserError

NAMES = st.lists(st.text(min_size=1, max_size=8), min_size=2, max_size=40, unique=True)


def raw(names: list[str], **others: object) -> RawSplits:
    return RawSplits("photos", train=FolderSource("photos", names), **others)  # type: ignore[arg-type]


def arrays(count: int) -> ArraySource:
    return ArraySource(np.zeros((count, 2, 2), np.uint8))


@given(NAMES, st.integers(0, 2**32 - 1), st.floats(0.01, 0.99))
def test_the_parts_are_disjoint_and_complete(names: list[str], seed: int, fraction: float) -> None:
    splits = prepare_splits(raw(names), seed, fraction)
    assert not set(splits.train.names) & set(splits.test.names)
    assert set(splits.train.names) | set(splits.test.names) == set(names)
    assert len(splits.train) and len(splits.test)
    assert splits.bank is splits.train
    assert splits.held_out_names == list(splits.test.names)


@given(NAMES, st.integers(0, 2**32 - 1), st.randoms(use_true_random=False))
def test_the_order_of_the_listing_does_not_matter(names: list[str], seed: int, random: object) -> None:
    shuffled = names.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    first, second = (prepare_splits(raw(listing), seed) for listing in (names, shuffled))
    assert set(first.test.names) == set(second.test.names)


@given(NAMES, st.integers(0, 2**32 - 1))
def test_a_recorded_split_is_rebuilt(names: list[str], seed: int) -> None:
    splits = prepare_splits(raw(names), seed, 0.3)
    again = apply_split(raw(names), splits.held_out_names)
    assert (list(again.train.names), list(again.test.names)) == (list(splits.train.names), list(splits.test.names))
    assert again.missing == 0


def test_the_seed_matters_and_sizes_are_as_said() -> None:
    names = [f"{i}.png" for i in range(200)]
    held_out = [set(prepare_splits(raw(names), seed).test.names) for seed in range(5)]
    assert all(len(part) == 20 for part in held_out)
    assert len(set(map(frozenset, held_out))) == 5
    assert len(prepare_splits(raw(names), 0, 0.001).test) == 1
    assert len(prepare_splits(RawSplits("many", train=arrays(30_000)), 0, 0.5).test) == 10_000


def test_a_grown_folder_never_turns_training_images_into_test_images() -> None:
    names = [f"{i}.png" for i in range(50)]
    splits = prepare_splits(raw(names), 0)
    assert splits.held_out_names is not None
    grown = apply_split(raw([*names, "new.png"][1:]), splits.held_out_names)
    assert set(grown.test.names) <= set(splits.test.names)
    assert grown.missing == ("0.png" in splits.held_out_names)
    assert "new.png" in grown.train.names


def test_a_set_keeps_its_own_split() -> None:
    train, test, val, labelled = (arrays(count) for count in (9, 3, 4, 5))
    splits = prepare_splits(RawSplits("x", train, test, val), 0)
    assert (splits.train, splits.test, splits.bank, splits.held_out_names) == (train, test, train, None)
    assert prepare_splits(RawSplits("x", train, None, val), 0).test is val
    assert prepare_splits(RawSplits("x", train, test, labelled=labelled), 0).bank is labelled
    assert apply_split(RawSplits("x", train, test), None).test is test


def test_a_set_divided_again_has_the_same_bank_and_counts_what_is_gone() -> None:
    train, test, labelled = (arrays(count) for count in (9, 3, 5))
    assert apply_split(RawSplits("x", train, test), None).bank is train
    assert apply_split(RawSplits("x", train, test, labelled=labelled), None).bank is labelled
    assert apply_split(RawSplits("x", train, labelled=labelled), ["2", "4"]).bank is labelled
    again = apply_split(RawSplits("x", train), ["2", "4", "lost", "gone", "away"])
    assert (list(again.bank.names), again.missing) == (["0", "1", "3", "5", "6", "7", "8"], 3)
    assert prepare_splits(RawSplits("x", train), 0).missing == 0


def test_labels_follow_the_images() -> None:
    source = ArraySource(np.arange(20, dtype=np.uint8).reshape(20, 1, 1), labels=np.arange(20))
    splits = prepare_splits(RawSplits("x", source), 0, 0.25)
    for part in (splits.train, splits.test):
        assert isinstance(part, ArraySource)
        assert part.labels is not None
        assert part.labels.tolist() == part.images.reshape(-1).tolist() == [int(name) for name in part.names]


def test_mistakes() -> None:
    with pytest.raises(UserError, match="1 image for training; at least 2"):
        prepare_splits(RawSplits("x", arrays(1)), 0)
    with pytest.raises(UserError, match="no training images"):
        prepare_splits(RawSplits("x", test=arrays(5)), 0)
    with pytest.raises(UserError, match="between 0 and 1"):
        prepare_splits(RawSplits("x", arrays(5)), 0, 1.5)
    with pytest.raises(UserError, match="has none now"):
        apply_split(RawSplits("x", arrays(5)), None)
    with pytest.raises(UserError, match="0 of the 2 images held out then are among its 5"):
        apply_split(RawSplits("x", arrays(5)), ["cat.png", "dog.png"])
