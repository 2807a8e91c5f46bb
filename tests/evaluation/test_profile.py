"""Costs against arithmetic by hand and torch's own counter; the paper's table is in ``tests/cli/test_profile.py``."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vje import VJE, Encoder
from vje.evaluation.profile import FlopCounter, TimedStep, count_costs, race
from vje.methods.method import Method, StepOutput
from vje.methods.simsiam import SimSiam


def test_flops_and_who_gets_gradients():
    x, w = torch.ones(5, 3), torch.ones(3, 7, requires_grad=True)
    with FlopCounter() as flops:
        y = x @ w
        with torch.no_grad():
            x @ w
        y.detach() @ torch.ones(7, 2)
        y @ torch.ones(7, 2)
    assert flops.tracked == 2 * 5 * 3 * 7 + 2 * 5 * 7 * 2
    assert flops.untracked == 2 * 5 * 3 * 7 + 2 * 5 * 7 * 2


@pytest.mark.parametrize("make", [lambda: VJE("resnet8", target="ema"), lambda: SimSiam("resnet8", hidden=32)])
def test_the_forward_pass_is_that_of_torchs_counter_on_real_tensors(make):
    with torch.device("meta"):
        costs = count_costs(make(), batch=6, size=8)
    model, views = make(), [torch.randn(6, 3, 8, 8) for _ in range(2)]
    with FlopCounterMode(display=False) as counter:
        model(views)
    assert costs.forward_flops * 6 == pytest.approx(counter.get_total_flops())


def test_a_step_is_that_of_torchs_counter_but_for_the_first_layer():
    """The images need no gradient, which the paper's threefold forward pass does not leave out."""
    with torch.device("meta"):
        costs = count_costs(VJE("resnet8", target="ema"), batch=6, size=8)
    model, views = VJE("resnet8", target="ema"), [torch.randn(6, 3, 8, 8) for _ in range(2)]
    with FlopCounterMode(display=False) as counter:
        model(views).loss.backward()
    first = 2 * (2 * 64 * 3 * 3 * 3 * 8 * 8)  # two views; 64 filters of 3x3x3 at each of 64 pixels
    assert costs.step_flops * 6 == pytest.approx(counter.get_total_flops() + 6 * first)


class Crosswise(Method):
    """A method whose loss multiplies features by features over the batch, and which looks at one view only once."""

    def __init__(self):
        super().__init__(Encoder(nn.Sequential(nn.Flatten(), nn.Linear(12, 4)), 4))
        self.frozen = nn.Linear(4, 9).requires_grad_(False)

    def forward(self, views, draws=None, labels=None):
        first, second = self.encoder(views[0]), self.encoder(views[1][: len(views[1]) // 2])
        assert torch.equal(first, first) in (True, False)  # a check of values stops nothing
        gram = first @ first.T
        return StepOutput(gram.sum() + second.sum(), {}, first)


def test_counts_by_hand():
    with torch.device("meta"):
        model = Crosswise()
    costs = count_costs(model, batch=8, size=2)
    encoder, frozen = 12 * 4 + 4, 4 * 9 + 9
    assert (costs.head_parameters, costs.trainable_parameters) == (0, encoder)
    assert costs.total_parameters == encoder + frozen
    assert costs.encoder_passes == 1.5
    assert costs.tracked_flops == 1.5 * 2 * 12 * 4 + 2 * 4 * 8  # the Gram matrix's share grows with the batch
    assert (costs.untracked_flops, costs.step_flops) == (0, 3 * costs.tracked_flops)
    with pytest.raises(ValueError, match="build it under"):
        count_costs(Crosswise(), batch=8, size=2)


def test_a_race():
    torch.manual_seed(0)
    views = [torch.randn(4, 3, 8, 8) for _ in range(2)]
    models = {"vje": VJE("resnet8", target="ema"), "simsiam": SimSiam("resnet8", hidden=16, bottleneck=8)}
    before = {name: [p.clone() for p in model.parameters()] for name, model in models.items()}
    steps = {name: TimedStep(model, views) for name, model in models.items()}
    turns = []
    timings = race(steps, "simsiam", windows=3, steps_each=1, warmup=1, report=lambda *turn: turns.append(turn))
    assert turns == [(i + 1, 8) for i in range(8)]  # with a turn each to warm up
    assert timings["simsiam"].relative == 1
    assert all(timing.images_per_second > 0 and timing.peak_bytes is None for timing in timings.values())
    for name, model in models.items():  # they were training steps, and of the EMA too
        changed = [not torch.equal(p, old) for p, old in zip(model.parameters(), before[name], strict=True)]
        assert sum(changed) > 0.8 * len(changed)
    target = [
        not torch.equal(p, q)
        for p, q in zip(models["vje"].target.parameters(), models["vje"].encoder.parameters(), strict=True)
    ]
    assert any(target)


def test_speeds_and_ratios_are_medians_over_windows(monkeypatch):
    """By a clock that only the steps move: three windows of three steps, after one step to warm up."""
    now = 0.0

    class Step:
        views = (torch.zeros(4, 3, 2, 2),)

        def __init__(self, *seconds):
            self.seconds = iter(seconds)

        def __call__(self):
            nonlocal now
            now += next(self.seconds)

        def resident_bytes(self):
            return 1

    monkeypatch.setattr("vje.evaluation.profile.time.perf_counter", lambda: now)
    quick, slow = Step(50.0, *[1.0] * 3, *[2.0] * 3, *[9.0] * 3), Step(70.0, *[4.0] * 3, *[6.0] * 3, *[10.0] * 3)
    found = race({"quick": quick, "slow": slow}, "quick", windows=3, steps_each=3, warmup=1)
    assert found["quick"].images_per_second == 4 / 2 and found["quick"].relative == 1
    assert found["slow"].images_per_second == pytest.approx(4 / 6)
    assert found["slow"].relative == pytest.approx(2 / 6)  # of 1/4, 2/6 and 9/10


def test_resident_bytes():
    model = SimSiam("resnet8", hidden=16, bottleneck=8)
    step = TimedStep(model, [torch.randn(4, 3, 8, 8) for _ in range(2)])
    parameters = sum(4 * p.numel() for p in model.parameters())
    buffers = sum(b.nbytes for b in model.buffers())
    views = 2 * 4 * 3 * 8 * 8 * 4
    assert step.resident_bytes() == parameters + buffers + views
    step()
    assert step.resident_bytes() == 2 * parameters + buffers + views  # momenta
