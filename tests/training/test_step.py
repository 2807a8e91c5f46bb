"""The training step against one written out by hand; accumulation, averages, trial steps and the alarm."""

import copy
import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.exc import InductorError

from vje.methods.moco import MoCo
from vje.random import Draws, Stream
from vje.runs import RunFolder
from vje.training import checkpoint
from vje.training.alarms import NonFinite
from vje.training.loop import Callback
from vje.training.step import _compiled

BATCH, SEED = 8, 3  # those of make_step


def take(step, count):
    """Take steps through the epochs, as the loop does."""
    for _ in range(count):
        epoch, first = divmod(int(step.state.step), step.batches.steps_per_epoch)
        step.batches.start_epoch(epoch, first)
        step()


def everything(step):
    """All that a checkpoint would hold."""
    return checkpoint.capture(step, {}).tensors


def assert_same(first, second):
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def weights(step):
    return {name: x.detach().clone() for name, x in step.method.state_dict().items()}


def watch_forward(step):
    """Records (views, draws, output) of every forward pass from now on."""
    seen, forward = [], step.method.forward

    def recorded(views, draws, labels=None):
        output = forward(views, draws)
        seen.append(([view.clone() for view in views], draws, output))
        return output

    step.method.forward = recorded
    return seen


def poison(step, at, what):
    """At step ``at`` and the one after the next, the loss's gradient or a reported part is not a number."""
    forward = step.method.forward

    def poisoned(views, draws, labels=None):
        output = forward(views, draws)
        factor = torch.where((draws.step == at) | (draws.step == at + 2), math.nan, 1.0)
        if what == "gradient":  # the value of the loss stays finite
            return output._replace(loss=output.loss.detach() + factor * (output.loss - output.loss.detach()))
        return output._replace(parts=output.parts | {"kl": output.parts["kl"] * factor})

    step.method.forward = poisoned


# A step is what it should be


def test_a_step_is_augmentation_forward_backward_sgd_and_the_moving_average(make_step):
    lr, decay, first_momentum, steps = 0.05, 1e-3, 0.7, 12
    step = make_step(lr=lr, weight_decay=decay, target_momentum=first_momentum, steps=steps, warmup=3)
    model = copy.deepcopy(step.method)
    mine = [p for p in model.parameters() if p.requires_grad]
    velocity = [torch.zeros_like(p) for p in mine]
    for t in range(7):
        take(step, 1)
        draws = Draws(SEED, t, torch.arange(BATCH))
        views = step.views(step.batches.fetch(torch.tensor(t)), draws, cropped=False)
        model.zero_grad()
        model(views, draws).loss.backward()
        rate = lr * (t + 1) / 3 if t < 3 else lr * (1 + math.cos(math.pi * (t - 3) / 9)) / 2
        with torch.no_grad():
            for p, v in zip(mine, velocity, strict=True):
                v.mul_(0.9).add_(p.grad + (decay if p.ndim > 1 else 0.0) * p)
                p.sub_(rate * v)
            momentum = 1 - (1 - first_momentum) * (1 + math.cos(math.pi * t / (steps - 1))) / 2
            for slow, fast in zip(model.target.parameters(), model.encoder.parameters(), strict=True):
                slow.copy_(momentum * slow + (1 - momentum) * fast)
        for name, expected in model.state_dict().items():
            torch.testing.assert_close(step.method.state_dict()[name], expected, rtol=2e-5, atol=1e-6, msg=name)
    assert int(step.state.step) == 7


def test_views_are_raw_images_augmented_each_in_its_own_stream_and_normalised(make_step):
    step = make_step()
    seen = watch_forward(step)
    take(step, 2)
    images = step.batches.fetch(torch.tensor(1))[0]
    first, second = seen[1][0]
    draws = Draws(SEED, 1, torch.arange(BATCH))
    for view, stream in ((first, Stream.VIEW_1), (second, Stream.VIEW_2)):
        expected = (step.views.augmentations[0](images, draws, stream) - 0.5) / 0.25
        torch.testing.assert_close(view, expected)
        assert view.is_contiguous(memory_format=torch.channels_last)
    assert not torch.equal(first, second)


def test_averages_are_over_the_steps_of_the_epoch(make_step):
    step = make_step(norm="batch")
    seen = watch_forward(step)
    take(step, 2)
    step.state.start_epoch()
    del seen[:]
    norms = []
    for _ in range(3):
        take(step, 1)
        norms.append(math.sqrt(sum(float(p.grad.double().pow(2).sum()) for p in step.parameters)))
    averages = step.averages(3)
    for name in seen[0][2].parts:
        values = [float(output.parts[name]) for _, _, output in seen]
        assert averages[name] == pytest.approx(sum(values) / 3, rel=1e-6), name
        assert len(set(values)) == 3
    assert averages["gradient_norm"] == pytest.approx(sum(norms) / 3, rel=1e-5)
    assert list(averages) == [*seen[0][2].parts, "gradient_norm"]
    z = torch.cat([output.embeddings for _, _, output in seen]).double()
    torch.testing.assert_close(step.state.gram, z.T @ z)


# Accumulation


@pytest.mark.parametrize("accumulate", [2, 4, 8])
def test_micro_batches_add_up_to_the_batch(make_step, accumulate):
    whole, split = make_step(), make_step(accumulate=accumulate)
    take(whole, 6)
    take(split, 6)
    before = weights(make_step())
    for name, expected in weights(whole).items():
        torch.testing.assert_close(weights(split)[name], expected, rtol=1e-4, atol=1e-6, msg=name)
    assert any((before[name] - x).abs().max() > 1e-3 for name, x in weights(whole).items())  # it had learned
    for name, expected in whole.averages(6).items():
        assert split.averages(6)[name] == pytest.approx(expected, rel=1e-4), name
    torch.testing.assert_close(split.state.gram, whole.state.gram, rtol=1e-4, atol=1e-5)


def test_draws_do_not_depend_on_accumulation(make_step):
    whole, split = make_step(), make_step(accumulate=4)
    seen_whole, seen_split = watch_forward(whole), watch_forward(split)
    take(whole, 1)
    take(split, 1)
    assert [len(views[0]) for views, _, _ in seen_split] == [2, 2, 2, 2]
    [(views, draws, _)] = seen_whole
    assert torch.equal(torch.cat([d.positions for _, d, _ in seen_split]), draws.positions)
    noise = torch.cat([d.normal(Stream.POSTERIOR, 5) for _, d, _ in seen_split])
    assert torch.equal(noise, draws.normal(Stream.POSTERIOR, 5))
    for i, view in enumerate(views):
        torch.testing.assert_close(torch.cat([v[i] for v, _, _ in seen_split]), view)


# Clipping


def test_clipping_limits_the_gradient_and_reports_what_it_was(make_step):
    lr, limit = 0.05, 0.5
    plain = {"momentum": 0.0, "weight_decay": 0.0, "warmup": 0, "lr": lr}
    free, clipped, loose = make_step(**plain), make_step(**plain, clip_norm=limit), make_step(**plain, clip_norm=1e6)
    before = [p.detach().clone() for p in free.parameters]

    def moved(step):
        take(step, 1)
        pairs = zip(step.parameters, before, strict=True)
        return torch.cat([(p.detach() - q).flatten() for p, q in pairs])

    full, short = moved(free), moved(clipped)
    norm = free.averages(1)["gradient_norm"]
    assert norm > 2 * limit
    assert clipped.averages(1)["gradient_norm"] == pytest.approx(norm)
    assert float(full.norm()) == pytest.approx(lr * norm, rel=1e-4)
    assert float(short.norm()) == pytest.approx(lr * limit, rel=1e-4)
    torch.testing.assert_close(short / short.norm(), full / full.norm(), rtol=1e-3, atol=1e-5)
    assert torch.equal(moved(loose), full)


# Trial steps


def test_building_a_step_leaves_no_trace(make_step):
    step = make_step(norm="batch")
    torch.manual_seed(5)
    before, random = weights(step), torch.get_rng_state()
    again = type(step)(
        step.method, step.optimizer, step.batches, step.views, step.learning_rates, step.momenta, SEED, step.options
    )
    assert_same(weights(again), before)
    assert torch.equal(torch.get_rng_state(), random)
    assert again.names == step.names


def test_a_trial_step_is_undone(make_step):
    step = make_step(norm="batch")
    take(step, 2)
    before = everything(step)
    with step._leaving_no_trace(*vars(step.state).values()):
        step._run()
        torch.randn(3)
        assert not torch.equal(everything(step)["state.step"], before["state.step"])
        assert not torch.equal(torch.get_rng_state(), before["random.cpu"])
    assert_same(everything(step), before)


def test_warming_up_compiles_and_leaves_no_trace(make_step, monkeypatch):
    """Traced as for any backend; generating code for the CPU would take minutes."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    step, eager = make_step(norm="batch", compile=True), make_step(norm="batch")
    before = everything(step)
    step.warm_up()
    assert_same(everything(step), before)
    compiled = len(graphs)
    assert compiled == 2  # augmentation and forward pass, each in one piece
    take(step, 3)
    take(eager, 3)
    assert len(graphs) == compiled  # nothing is left to compile
    for name, expected in weights(eager).items():
        torch.testing.assert_close(weights(step)[name], expected, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("left", [1, 0])
def test_warming_up_needs_no_steps_that_the_run_has_not_got(make_step, monkeypatch, left):
    """All steps may be done already: what was killed after the last checkpoint still has its model to write."""
    monkeypatch.setattr(torch, "compile", lambda function, options=None: function)
    step = make_step(compile=True, steps=5)
    take(step, 5 - left)
    before = everything(step)
    assert step.warm_up() == ""
    assert_same(everything(step), before)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_where_compiling_fails_steps_are_taken_all_the_same(make_step, monkeypatch, where):
    def failing(graph, inputs):
        raise InductorError(AssertionError("512 v.s. 4096"), None)

    broken = aot_autograd(fw_compiler=lambda graph, inputs: graph, bw_compiler=failing)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=failing if where == "forward" else broken))
    step, eager = make_step(norm="batch", compile=True), make_step(norm="batch")
    before = everything(step)
    assert step.warm_up() == "AssertionError: 512 v.s. 4096"
    assert_same(everything(step), before)
    assert not step.options.compile
    take(step, 3)
    take(eager, 3)
    assert_same(everything(step), everything(eager))


def test_an_error_that_is_not_the_compilers_is_not_taken_for_one(make_step, monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    step = make_step(compile=True)

    def fetch(at):
        raise ValueError("no images")

    monkeypatch.setattr(step.batches, "fetch", fetch)
    with pytest.raises(ValueError, match="no images"):
        step.warm_up()


def test_batch_norm_in_groups_is_compiled_without_the_fusion_that_fails(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda function, options=None: asked.append(options) or function)
    plain, grouped = (MoCo("resnet8", queue=8, hidden=8, projection=4, groups=n) for n in (1, 2))
    for method in (plain, grouped):
        _compiled(method, method)
    assert asked == [None, {"triton.mix_order_reduction": False}]
    assert asked[1].keys() <= torch._inductor.config.get_config_copy().keys()  # torch refuses names it does not know


# Non-finite values


@pytest.mark.parametrize(("what", "part"), [("gradient", "gradient_norm"), ("part", "kl")])
def test_a_bad_step_and_all_after_it_change_no_weight(make_step, what, part):
    step, healthy = make_step(), make_step()
    poison(step, at=4, what=what)
    take(step, 4)
    take(healthy, 4)
    assert int(step.state.bad_step) == -1
    before = everything(step)
    assert_same(before, everything(healthy))
    for _ in range(4):
        take(step, 1)
        now = everything(step)
        assert_same(
            {name: x for name, x in now.items() if name.startswith(("method.", "optimizer."))},
            {name: x for name, x in before.items() if name.startswith(("method.", "optimizer."))},
        )
        assert int(step.state.bad_step) == 4
    parts = dict(zip(step.names, step.state.bad_parts.tolist(), strict=True))
    assert [name for name, value in parts.items() if not math.isfinite(value)] == [part]


@pytest.mark.parametrize(("what", "part"), [("gradient", "gradient_norm"), ("part", "kl")])
def test_the_loop_stops_names_the_parts_and_saves_the_batch(train, small_config, tmp_path, what, part):
    stepped = []

    def prepare(loop):
        poison(loop.step, at=5, what=what)
        loop.check_every = 3  # the device is looked at some steps later
        stepped.append(loop.step)

    with pytest.raises(NonFinite, match=rf"step 5: {part} = nan \(the rest: loss = ") as error:
        train(small_config, tmp_path / "run", prepare=prepare)
    [step] = stepped
    file = tmp_path / "run" / "bad-batch-step-5.safetensors"
    assert str(file) in str(error.value)
    saved = load_file(file)
    assert saved.keys() == {"images", "view_1", "view_2"}
    assert torch.equal(saved["images"], step.batches.fetch(torch.tensor(5))[0])
    assert torch.equal(saved["view_1"], step.rebuild_batch(5)["view_1"])
    assert saved["view_1"].shape == (8, 3, 8, 8)
    assert [record["step"] for record in RunFolder(tmp_path / "run").metrics()] == [4]  # the epoch that was good


# The loop's account of time


@pytest.fixture
def clock(monkeypatch):
    """``clock(loop)``: the loop's time goes by two seconds a step, and stands still otherwise."""
    now = [100.0]
    monkeypatch.setattr("vje.training.loop.time", SimpleNamespace(monotonic=lambda: now[0]))

    def drive(loop):
        def advance(onward=loop.batches.advance):
            now[0] += 2.0
            onward()

        loop.batches.advance = advance

    return drive


def test_speeds_are_of_the_steps_that_were_taken_and_time_adds_up_over_interruptions(
    train, small_config, tmp_path, clock
):
    """Two epochs of four steps of eight images; the second is left in its middle, and gone on with."""
    told, heard = Callback(), []
    told.on_progress = heard.append

    def prepare(loop):
        clock(loop)
        loop.check_every, loop.callbacks = 2, [told, *loop.callbacks]

    for stop in (6, None):
        loop = train(small_config, tmp_path / "run", stop, prepare)
    first, second = RunFolder(tmp_path / "run").metrics()
    assert [first[name] for name in ("images_per_second", "seconds", "elapsed")] == [4, 8, 8]
    assert [second[name] for name in ("images_per_second", "seconds", "elapsed")] == [4, 4, 16]
    rates = loop.step.learning_rates.tolist()
    assert [first["lr"], second["lr"]] == [rates[3], rates[7]]
    assert [(p.epoch, p.epoch_step, p.images_per_second) for p in heard] == [(1, 2, 4), (1, 4, 4), (2, 2, 4), (2, 4, 4)]
    for progress, record in ((heard[1], first), (heard[3], second)):
        assert progress.averages == pytest.approx({name: record[name] for name in progress.averages})


@pytest.mark.parametrize(
    ("epochs", "seconds", "saved"), [(10, 1e9, [8]), (1, 1e9, [4, 8]), (10, 5.0, [3, 6, 8]), (10, 6.0, [4, 8])]
)
def test_a_checkpoint_is_written_after_so_many_epochs_or_seconds_and_at_the_end(
    train, small_config, tmp_path, clock, monkeypatch, epochs, seconds, saved
):
    steps = []
    monkeypatch.setattr(checkpoint, "write", lambda _, found: steps.append(found.info["step"]))

    def prepare(loop):
        clock(loop)
        loop.checkpoint_epochs, loop.checkpoint_seconds = epochs, seconds

    train(small_config, tmp_path / "run", prepare=prepare)
    assert steps == saved
