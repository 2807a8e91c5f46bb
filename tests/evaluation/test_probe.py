"""The linear probe against scikit-learn, autograd and counting by hand."""

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from vje.data.order import epoch_order
from vje.errors import UserError
from vje.evaluation.probe import FeatureBatches, Split, hold_out, linear_probe, stored_training
from vje.evaluation.sweep import LinearSweep, scale_of


def blobs(count, classes, dim, spread, seed=0, dtype=torch.float32):
    """Classes around random centres; the same centres for every seed."""
    centres = np.random.default_rng(99).normal(size=(classes, dim))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    x = centres[labels] + spread * rng.normal(size=(count, dim))
    return torch.from_numpy(x * np.linspace(0.1, 30, dim) + 5).to(dtype), torch.from_numpy(labels)


def probe(train, test, batch=32, held_out=0.1, seed=0, **options):
    training = stored_training({"x": train[0]}, train[1], batch, held_out, seed)
    return linear_probe(training, Split({"x": test[0]}, test[1]), **options)["x"]


@pytest.mark.parametrize(("spread", "tolerance"), [(0.05, 0.0), (1.5, 3.0)])
def test_as_accurate_as_logistic_regression(spread, tolerance):
    train, test = blobs(500, 4, 12, spread), blobs(400, 4, 12, spread, seed=1)
    found = probe(train, test, epochs=30)
    mean, std = scale_of(train[0])
    judge = LogisticRegression(C=1e4, max_iter=2000).fit((train[0] - mean) / std, train[1])
    expected = 100 * judge.score((test[0] - mean) / std, test[1])
    assert found.top1 == pytest.approx(expected, abs=tolerance)
    assert found.top1 == (100 if spread < 1 else pytest.approx(80, abs=15))  # neither hopeless nor trivial
    assert found.top5 is None  # of four classes


def test_converges_to_the_optimum_of_the_penalised_likelihood():
    x, y = blobs(200, 3, 5, 1.5, dtype=torch.float64)
    decay, steps = 1e-3, 3000
    sweep = LinearSweep(5, 3, [0.3], steps, weight_decay=decay, dtype=torch.float64)
    x = (x - x.mean(0)) / x.std(0)
    for _ in range(steps):
        sweep.step(x, y)
    judge = LogisticRegression(C=1 / (decay * len(x)), tol=1e-10, max_iter=5000).fit(x, y)

    def objective(weight, bias):
        log_p = torch.log_softmax(x @ torch.as_tensor(weight).T + torch.as_tensor(bias), 1)
        return -log_p[torch.arange(len(x)), y].mean().item() + decay / 2 * (np.asarray(weight) ** 2).sum()

    best = objective(judge.coef_, judge.intercept_)
    assert objective(sweep.weight[0], sweep.bias[0]) == pytest.approx(best, rel=1e-7)
    assert LinearSweep(5, 3, [0.3], 1).loss(x.float(), y).dtype == torch.float64
    assert sweep.loss(x, y).item() == pytest.approx(best - decay / 2 * float(sweep.weight.square().sum()), rel=1e-6)


RATES = (0.01, 0.1, 0.7)


def train_sweep(rates, x, y, epochs=4, batch=16, **options):
    batches = FeatureBatches({"x": x}, batch, seed=3)
    sweep = LinearSweep(
        x.shape[1], int(y.max()) + 1, rates, epochs * batches.steps_per_epoch, dtype=torch.float64, **options
    )
    for epoch in range(epochs):
        for features, rows in batches.epoch(epoch):
            sweep.step(features["x"], y[rows])
    return sweep


def test_the_rates_do_not_mix():
    x, y = blobs(70, 3, 6, 1.0, dtype=torch.float64)
    options = {"mean": x.mean(0), "std": x.std(0), "weight_decay": 0.01}
    together = train_sweep(RATES, x, y, **options)
    for i, rate in enumerate(RATES):
        alone = train_sweep([rate], x, y, **options)
        assert torch.allclose(together.weight[i], alone.weight[0], atol=1e-6, rtol=0)
        assert torch.allclose(together.bias[i], alone.bias[0], atol=1e-6, rtol=0)
    assert not torch.allclose(together.weight[0], together.weight[1], atol=1e-3)


def test_steps_are_those_of_torch_sgd_on_a_cosine():
    x, y = blobs(70, 3, 6, 1.0, dtype=torch.float64)
    mean, std = scale_of(x)
    sweep = train_sweep(RATES, x, y, mean=mean, std=std, weight_decay=0.01)
    for i, rate in enumerate(RATES):
        layer = nn.Linear(6, 3, dtype=torch.float64)
        nn.init.zeros_(layer.weight), nn.init.zeros_(layer.bias)
        groups = [{"params": [layer.weight], "weight_decay": 0.01}, {"params": [layer.bias]}]
        optimizer = torch.optim.SGD(groups, lr=rate, momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4 * (70 // 16))
        batches = FeatureBatches({"x": (x - mean) / std}, 16, seed=3)
        for epoch in range(4):
            for features, rows in batches.epoch(epoch):
                optimizer.zero_grad()
                nn.functional.cross_entropy(layer(features["x"]), y[rows]).backward()
                optimizer.step()
                schedule.step()
        assert torch.allclose(sweep.weight[i], layer.weight, atol=1e-6)
        assert torch.allclose(sweep.bias[i], layer.bias, atol=1e-6)
        assert sweep.loss(x, y)[i].item() == pytest.approx(
            nn.functional.cross_entropy(layer((x - mean) / std), y).item()
        )


def test_a_classifier_learns_from_its_share_alone():
    x, y = blobs(40, 3, 6, 1.0, dtype=torch.float64)
    share = torch.ones(40, 2, dtype=torch.float64)
    share[::4, 1] = 0
    both, part = LinearSweep(6, 3, [0.1, 0.1], 20, dtype=x.dtype), LinearSweep(6, 3, [0.1], 20, dtype=x.dtype)
    kept = share[:, 1] > 0
    for _ in range(20):
        both.step(x, y, share)
        part.step(x[kept], y[kept])
    assert torch.allclose(both.weight[1], part.weight[0], atol=1e-12)
    assert not torch.allclose(both.weight[0], part.weight[0], atol=1e-3)


def test_a_batch_without_a_share_teaches_nothing():
    sweep = LinearSweep(2, 2, [0.1, 0.1], 2)
    sweep.step(torch.eye(2), torch.tensor([0, 1]), torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    assert sweep.weight[0].abs().sum() > 0
    assert sweep.weight[1].abs().sum() == 0


def test_every_epoch_is_a_permutation_of_whole_batches():
    x = torch.arange(10.0).view(-1, 1)
    batches = FeatureBatches({"a": x, "b": -x}, 3, seed=0)
    orders = []
    for epoch in range(2):
        seen = list(batches.epoch(epoch))
        assert [len(rows) for _, rows in seen] == [3, 3, 3]
        for features, rows in seen:
            assert torch.equal(features["a"][:, 0], rows.float())
            assert torch.equal(features["b"], -features["a"])
        orders.append(torch.cat([rows for _, rows in seen]).tolist())
        assert len(set(orders[-1])) == 9
    assert orders[0] != orders[1]


def test_accuracies_against_a_hand_count():
    rng = np.random.default_rng(0)
    x, y = torch.from_numpy(rng.normal(size=(300, 9))), torch.from_numpy(rng.integers(0, 9, 300))
    sweep = LinearSweep(9, 9, [1.0, 1.0], 1, dtype=torch.float64)
    sweep.weight.copy_(torch.from_numpy(rng.normal(size=(2, 9, 9))))
    sweep.bias.copy_(torch.from_numpy(rng.normal(size=(2, 9))))
    y[:5] = -1  # classes that training has not seen
    for r in range(2):
        logits = x.numpy() @ sweep.weight[r].numpy().T + sweep.bias[r].numpy()
        order = [sorted(range(9), key=lambda c, row=row: -row[c]) for row in logits]
        for k in (1, 5):
            expected = sum(int(label) in guesses[:k] for guesses, label in zip(order, y, strict=True)) / 3
            assert sweep.accuracy(x, y, k)[r].item() == pytest.approx(expected, abs=1e-9)
    sweep.weight[1] = math.nan  # a rate that is too high
    assert sweep.accuracy(x, y, 5)[1] == 0


def test_top_five_is_that_of_the_chosen_rate():
    train, test = blobs(300, 8, 10, 2.0), blobs(200, 8, 10, 2.0, seed=1)
    found = probe(train, test, epochs=5)
    chosen = next(rate for rate in found.rates if rate.lr == found.lr)
    assert (found.top1, found.top5) == (chosen.test_top1, chosen.test_top5)
    assert all(rate.test_top1 <= rate.test_top5 <= 100 for rate in found.rates)
    assert chosen.validation_top1 == max(rate.validation_top1 for rate in found.rates)


def test_the_test_images_have_no_say_in_the_rate():
    train, test = blobs(300, 4, 10, 2.0), blobs(100, 4, 10, 2.0, seed=1)
    found = probe(train, test, epochs=5)
    best_of_test = max(found.rates, key=lambda rate: rate.test_top1)
    for seed in range(3):
        shuffled = test[1][torch.randperm(100, generator=torch.Generator().manual_seed(seed))]
        other = probe(train, (test[0].flip(0), shuffled), epochs=5)
        assert other.lr == found.lr
        assert [r.validation_top1 for r in other.rates] == [r.validation_top1 for r in found.rates]
    assert best_of_test.test_top1 > other.top1


def test_the_images_held_out_are_not_learnt():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 200, generator=generator)  # more features than images: any labels can be learnt by heart
    y = torch.randint(0, 2, (120,), generator=generator)
    found = probe((x, y), (x, y), held_out=0.5, epochs=40)
    assert found.top1 == 100  # by what learns from all
    assert all(rate.validation_top1 < 75 for rate in found.rates)  # and by heart helps no further


def test_scale_does_not_matter_when_standardised():
    train, test = blobs(300, 3, 6, 1.5), blobs(100, 3, 6, 1.5, seed=1)
    scaled = [(1000 * x + 77, y) for x, y in (train, test)]
    found, other = probe(train, test, epochs=5), probe(*scaled, epochs=5)
    assert other.lr == found.lr
    assert other.top1 == pytest.approx(found.top1, abs=1)
    plain = probe(train, test, epochs=5, standardize=False)
    assert [rate.test_top1 for rate in plain.rates] != [rate.test_top1 for rate in found.rates]


def test_features_are_scaled_by_the_mean_and_deviation_of_all_rows():
    x = blobs(2500, 3, 6, 1.0)[0] + 1e4
    mean, std = scale_of(x)
    np.testing.assert_allclose(mean, x.numpy().mean(0, dtype=np.float64), rtol=1e-12)
    np.testing.assert_allclose(std, x.numpy().std(0, dtype=np.float64), rtol=1e-9)


def test_features_that_do_not_vary():
    mean, std = scale_of(torch.tensor([[1e4, 0.0, 1.0], [1e4, 0.0, 3.0]]))
    assert mean.tolist() == [1e4, 0.0, 2.0]
    assert std.tolist() == [1.0, 1.0, 1.0]
    at_the_edge = 1 + torch.tensor([[-1.0, -0.5], [1.0, 0.5]], dtype=torch.float64) * 1.6e-6
    assert scale_of(at_the_edge)[1].tolist() == pytest.approx([1.6e-6, 1.0])  # a millionth of the mean is noise
    train, test = blobs(100, 2, 4, 0.1), blobs(50, 2, 4, 0.1, seed=1)
    dead = [(torch.cat([x, torch.full((len(x), 2), 0.3)], 1), y) for x, y in (train, test)]
    assert probe(*dead, epochs=5).top1 == 100


def test_class_numbers_need_not_be_consecutive():
    train, test = blobs(200, 2, 4, 0.1), blobs(50, 2, 4, 0.1, seed=1)
    odd = torch.tensor([3, 900_000])
    labels = odd[test[1]]
    assert probe((train[0], odd[train[1]]), (test[0], labels), epochs=5).top1 == 100
    labels[:10] = 7  # a class without training images
    assert probe((train[0], odd[train[1]]), (test[0], labels), epochs=5).top1 == 80


@pytest.mark.parametrize("stranger", [-4, 7, 1_000_000])
def test_a_class_that_was_not_trained_on_is_never_right(stranger):
    train, test = blobs(200, 2, 4, 0.1), blobs(50, 2, 4, 0.1, seed=1)
    labels = torch.tensor([3, 900_000])[test[1]]
    labels[:10] = stranger
    assert probe((train[0], torch.tensor([3, 900_000])[train[1]]), (test[0], labels), epochs=5).top1 == 80


@pytest.mark.parametrize("classes", [5, 6])
def test_five_guesses_are_counted_for_more_than_five_classes(classes):
    found = probe(blobs(200, classes, 6, 0.5), blobs(60, classes, 6, 0.5, seed=1), epochs=3)
    assert (found.top5 is not None) == (classes > 5)
    assert all((rate.test_top5 is not None) == (classes > 5) for rate in found.rates)


def test_a_rate_that_diverges_has_no_hits_and_an_infinite_loss():
    train, test = blobs(200, 3, 5, 0.1), blobs(60, 3, 5, 0.1, seed=1)
    found = probe(train, test, epochs=3, rates=(0.1, 1e38))
    good, bad = found.rates
    assert (bad.validation_top1, bad.validation_loss, bad.test_top1) == (0, math.inf, 0)
    assert found.lr == good.lr == 0.1


def test_progress_is_told_after_every_epoch():
    told = []
    train = blobs(40, 2, 3, 0.5)
    probe(train, train, epochs=4, report=lambda done, total: told.append((done, total)))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_the_seed_decides_all():
    train, test = blobs(200, 4, 6, 2.0), blobs(100, 4, 6, 2.0, seed=1)
    assert probe(train, test, epochs=3) == probe(train, test, epochs=3)
    assert probe(train, test, epochs=3) != probe(train, test, epochs=3, seed=1)


def test_what_is_held_out():
    held = hold_out(100, 0.1, seed=0)
    assert len(held) == len(set(held.tolist())) == 10
    assert torch.equal(held, hold_out(100, 0.1, seed=0))
    assert not torch.equal(held, hold_out(100, 0.1, seed=1))
    assert len(hold_out(1_000_000, 0.1, seed=0)) == 10_000
    assert len(hold_out(3, 0.01, seed=0)) == 1
    assert len(hold_out(3, 0.99, seed=0)) == 2
    assert not any(torch.equal(held, epoch_order(100, 0, epoch)[:10]) for epoch in range(20))
    with pytest.raises(UserError, match=r"between 0 and 1, got 1\.5"):
        hold_out(3, 1.5, seed=0)


def test_mistakes():
    x, y = blobs(20, 2, 3, 1.0)
    with pytest.raises(UserError, match="batch size must be from 1 to 20"):
        probe((x, y), (x, y), batch=21)
    with pytest.raises(UserError, match="at least two classes"):
        probe((x, torch.ones_like(y)), (x, y), batch=5)
