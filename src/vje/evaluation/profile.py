"""What a training method costs: parameters, passes through the encoder, operations, memory and time (tab:compute).

Parameters and operations are counted without doing any: the model is built on the meta device, and its forward pass
runs on tensors that have shapes and no values. Time is measured side by side, a few steps of each method in turn, so
that what else the machine does falls on all alike.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from vje.evaluation.features import Report
from vje.methods.method import Method
from vje.networks.encoders import Encoder

LEARNING_RATE = 1e-4
"""Of the steps that are timed; random images teach nothing, and it should not matter how many there were."""


@dataclass(frozen=True)
class Costs:
    """What a training step takes."""

    head_parameters: int  # trainable ones outside the encoder
    trainable_parameters: int  # all that get gradients
    total_parameters: int  # with those that follow others, such as an EMA encoder's
    encoder_passes: float  # images that went through an encoder, online or EMA, for each image of the batch
    # operations of the forward pass that gradients flow back through, for each image of the batch
    tracked_flops: float
    untracked_flops: float  # those without gradients, such as an EMA encoder's

    @property
    def forward_flops(self) -> float:
        """The whole forward pass."""
        return self.tracked_flops + self.untracked_flops

    @property
    def step_flops(self) -> float:
        """A training step: going back costs twice what going forward did (by inputs, and by weights)."""
        return 3 * self.tracked_flops + self.untracked_flops


class FlopCounter(TorchDispatchMode):
    """Counts multiplications and additions of matrix products and convolutions, as ``torch.utils.flop_counter``.

    Attributes:
        tracked: operations that gradients flow back through.
        untracked: all others.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tracked, self.untracked = 0, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Do the operation, and count it."""
        if func is torch.ops.aten.equal.default:
            return False  # a check of values (torch.cov makes one), where there are none
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            count = formula(*args, **(kwargs or {}), out_val=out)
            if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args):
                self.tracked += count
            else:
                self.untracked += count
        return out


def count_costs(model: Method, batch: int, size: int) -> Costs:
    """Count a model's parameters, and what a step on ``batch`` images does.

    Args:
        model: built under ``torch.device("meta")``; it cannot be used for anything else afterwards.
        batch: images a step; losses that look across them depend on it.
        size: side of the images, which have three channels.

    >>> from vje import VJE
    >>> with torch.device("meta"):
    ...     model = VJE("resnet8", target="ema")
    >>> costs = count_costs(model, batch=4, size=8)
    >>> costs.encoder_passes, round(costs.untracked_flops / costs.forward_flops, 2)
    (4.0, 0.5)
    """
    if any(not x.is_meta for x in model.parameters()):
        raise ValueError('the model has weights; build it under torch.device("meta")')
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    head = trainable - sum(p.numel() for p in model.encoder.parameters() if p.requires_grad)
    total = sum(p.numel() for p in model.parameters())
    # Autocast knows no meta device, which is why the tensors pretend to be the CPU's.
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu").train()
        views = [torch.empty(batch, 3, size, size, device="cpu") for _ in range(model.views)]
        labels = torch.zeros(batch, dtype=torch.int64, device="cpu") if model.needs_labels else None
        passes = _count_passes(model)
        with FlopCounter() as flops:
            model(views, None, labels)
    return Costs(head, trainable, total, sum(passes) / batch, flops.tracked / batch, flops.untracked / batch)


def _count_passes(model: Method) -> list[int]:
    """How many images each later call of an encoder gets."""
    passes: list[int] = []

    def note(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        passes.append(len(inputs[0]))

    for module in model.modules():
        if isinstance(module, Encoder):
            module.register_forward_pre_hook(note)
    return passes


class TimedStep:
    """A training step without its data: forward, backward, SGD with momentum, EMA; on views that stay the same.

    Args:
        model: on its device.
        views: random images there, each ``[B, C, H, W]``; as many as the model wants are used.
        classes: number of classes, for methods that learn from labels.
        autocast: run the forward pass in bfloat16.
    """

    def __init__(self, model: Method, views: Sequence[Tensor], classes: int = 1000, autocast: bool = False) -> None:
        self.model, self.views, self.autocast = model.train(), list(views[: model.views]), autocast
        count, device = len(views[0]), views[0].device
        self.labels = torch.arange(count, device=device) % classes if model.needs_labels else None
        parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=0.9, fused=True)

    def __call__(self) -> None:
        """Take one step."""
        with torch.autocast(self.views[0].device.type, torch.bfloat16, enabled=self.autocast):
            loss = self.model(self.views, None, self.labels).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.model.after_step(0.99)

    def resident_bytes(self) -> int:
        """What stays on the device from step to step: weights, buffers, momenta and the views."""
        momenta = [x for state in self.optimizer.state.values() for x in state.values() if isinstance(x, Tensor)]
        tensors = [*self.model.parameters(), *self.model.buffers(), *momenta, *self.views]
        return sum(x.numel() * x.element_size() for x in tensors)


@dataclass(frozen=True)
class Timing:
    """How fast a method was."""

    images_per_second: float  # median over the windows
    relative: float  # to the reference, the median of the windows' ratios
    peak_bytes: int | None  # of GPU memory, as if the method had been alone; None elsewhere


def race(
    steps: Mapping[str, TimedStep], reference: str, windows: int = 7, steps_each: int = 5, warmup: int = 3,
    report: Report | None = None,
) -> dict[str, Timing]:  # fmt: skip
    """Time training steps: in each window, a few of each method in turn.

    Args:
        steps: one a method, by name.
        reference: the name that the others are compared with.
        windows: how many times each has its turn.
        steps_each: steps a turn.
        warmup: steps of each before the first window, in which algorithms are chosen and memory is taken.
        report: told (turns done, turns in all) after each; the first of each method is to warm up, and takes longest.
    """
    device = steps[reference].views[0].device
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    peaks: dict[str, int] = dict.fromkeys(steps, 0)
    turns = [(window, name) for window in range(1 + windows) for name in steps]
    for number, (window, name) in enumerate(turns, start=1):
        elapsed, growth = _window(steps[name], steps_each if window else warmup, device)
        if window:
            seconds[name].append(elapsed)
            peaks[name] = max(peaks[name], growth + steps[name].resident_bytes())
        if report is not None:
            report(number, len(turns))
    timings = {}
    for name, step in steps.items():
        ratios = [a / b for a, b in zip(seconds[reference], seconds[name], strict=True)]
        speed = steps_each * len(step.views[0]) / statistics.median(seconds[name])
        peak = peaks[name] if device.type == "cuda" else None
        timings[name] = Timing(speed, statistics.median(ratios), peak)
    return timings


def _window(step: Callable[[], None], count: int, device: torch.device) -> tuple[float, int]:
    """Seconds that some steps take, from an idle device to an idle device, and by how much GPU memory grew in them."""
    gpu, before = device.type == "cuda", 0
    if gpu:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    began = time.perf_counter()
    for _ in range(count):
        step()
    if gpu:
        torch.cuda.synchronize(device)
    elapsed = time.perf_counter() - began
    return elapsed, torch.cuda.max_memory_allocated(device) - before if gpu else 0
