"""One training step: augment, forward, backward, optimise, EMA; all of it on the device.

Nothing in a step depends on a value held by the host: the step counter, the schedules, the sums of the epoch's metrics
and the alarm flag are device tensors. So the host only says "again", and on one GPU the whole step is compiled and
captured as a single CUDA graph.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vje.data.augment import Augmentation
from vje.methods.method import Method, StepOutput
from vje.preprocessing import Preprocessing
from vje.random import Draws, Stream
from vje.training.batches import Batches


class Views:
    """Raw images to normalised views.

    Args:
        augmentations: one a view.
        preprocessing: for the normalisation.
    """

    def __init__(self, augmentations: Sequence[Augmentation], preprocessing: Preprocessing) -> None:
        self.augmentations, self.preprocessing = tuple(augmentations), preprocessing

    def __call__(self, images: Sequence[Tensor], draws: Draws, cropped: bool) -> list[Tensor]:
        """The views, float32 ``[B, C, size, size]``, channels last."""
        views = []
        for i, (augment, stream) in enumerate(zip(self.augmentations, (Stream.VIEW_1, Stream.VIEW_2), strict=False)):
            view = augment(images[i if cropped else 0], draws, stream, cropped)
            views.append(self.preprocessing.normalize(view).contiguous(memory_format=torch.channels_last))
        return views


@dataclass
class StepState:
    """What a step leaves behind on the device; all of it is saved in a checkpoint."""

    step: Tensor  # optimiser steps done, int64
    sums: Tensor  # sum over the epoch's steps of each reported number, shape ``[number of parts]``
    gram: Tensor  # sum of z z' over the epoch, for the effective rank, shape ``[D, D]``
    bad_step: Tensor  # first step whose loss or gradient was not finite, or -1. From then on weights stand still.
    bad_parts: Tensor  # the reported numbers of that step

    @classmethod
    def create(cls, parts: int, dim: int, device: torch.device) -> "StepState":
        """The state before the first step."""
        wide = torch.float32 if device.type == "mps" else torch.float64
        return cls(
            step=torch.zeros((), dtype=torch.int64, device=device),
            sums=torch.zeros(parts, dtype=wide, device=device),
            gram=torch.zeros(dim, dim, dtype=wide, device=device),
            bad_step=torch.full((), -1, dtype=torch.int64, device=device),
            bad_parts=torch.zeros(parts, dtype=wide, device=device),
        )

    def start_epoch(self) -> None:
        """Forget the last epoch's sums."""
        self.sums.zero_()
        self.gram.zero_()


@dataclass(frozen=True)
class StepOptions:
    """How a step is carried out."""

    batch: int  # images a step in this process
    first_position: int = 0  # place of the first of them in the global batch
    # micro-batches the batch is split into; gradients add up to the batch's, except for losses that look across
    # images and see no further than a micro-batch
    accumulate: int = 1
    clip_norm: float = 0.0  # largest gradient norm; 0 for no limit
    autocast: bool = False  # bfloat16 for the encoder
    compile: bool = False  # compile augmentation, forward and backward
    capture: bool = False  # replay the step as one CUDA graph


class TrainStep:
    """The whole step, called without arguments.

    Args:
        method: what to train.
        optimizer: over its parameters, with its learning rate in a tensor.
        batches: where images come from.
        views: how they become views.
        learning_rates: table of one value a step, on the device.
        momenta: likewise, for the EMA.
        seed: of all draws.
        options: how to carry it out.
        wrapped: the method inside DistributedDataParallel, where there are several processes.
    """

    def __init__(
        self,
        method: Method,
        optimizer: torch.optim.Optimizer,
        batches: Batches,
        views: Views,
        learning_rates: Tensor,
        momenta: Tensor,
        seed: int,
        options: StepOptions,
        wrapped: DistributedDataParallel | None = None,
    ) -> None:
        self.method, self.optimizer, self.batches, self.views = method, optimizer, batches, views
        self.learning_rates, self.momenta, self.seed, self.options = learning_rates, momenta, seed, options
        self.device = learning_rates.device
        self.parameters = [p for p in method.parameters() if p.requires_grad]
        self._wrapped = wrapped
        self._forward: Callable[..., StepOutput] = wrapped if wrapped is not None else method
        self._views: Callable[..., list[Tensor]] = views
        if options.compile:
            warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")  # float32 is meant as it is said
            self._forward, self._views = _compiled(self._forward, method), _compiled(views, method)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._found_bad = torch.zeros((), device=self.device)
        self.optimizer.found_inf = self._found_bad  # type: ignore[attr-defined]  # fused kernels skip the update if 1
        with self._leaving_no_trace():
            output = self._trial_forward()
        self.names = [*output.parts, "gradient_norm"]
        self.state = StepState.create(len(self.names), output.embeddings.shape[1], self.device)

    def __call__(self) -> None:
        """Take one step."""
        if self._graph is not None:
            self._graph.replay()
        else:
            self._run()

    def warm_up(self) -> str:
        """Compile and capture what was asked for, in trial steps whose every effect is undone.

        Returns:
            Why steps are not compiled although they should be, or "".
        """
        if not (self.options.compile or self.options.capture):
            return ""
        from torch._dynamo.exc import TorchDynamoException  # takes seconds to import

        try:
            with self._leaving_no_trace(*vars(self.state).values()):
                if self.options.capture:
                    self._capture()
                else:
                    self._trial_step()
        except TorchDynamoException as error:  # a mistake in the compiler is no reason not to train
            self._forward, self._views = self._wrapped or self.method, self.views
            self.options = replace(self.options, compile=False, capture=False)
            cause = getattr(error, "inner_exception", error)
            return f"{type(cause).__name__}: {cause}".splitlines()[0]
        return ""

    def rebuild_batch(self, step: int) -> dict[str, Tensor]:
        """Raw images and views of a past step (resident data), for looking at what went wrong."""
        at = torch.tensor(step, device=self.device)
        images = self.batches.fetch(at)
        views = self.views(images, self._draws(at, 0, self.options.batch), self.batches.cropped)
        return {"images": images[0], **{f"view_{i + 1}": view.contiguous() for i, view in enumerate(views)}}

    def averages(self, steps: int) -> dict[str, float]:
        """Mean of each reported number over the epoch's ``steps`` so far (waits for the device)."""
        values: list[Any] = (self.state.sums / max(1, steps)).tolist()
        return dict(zip(self.names, values, strict=True))

    # The step itself

    def _run(self) -> None:
        state, options = self.state, self.options
        self.optimizer.param_groups[0]["lr"].copy_(self.learning_rates.take(state.step))
        self.optimizer.zero_grad(set_to_none=True)
        images, labels = self.batches.fetch(state.step), self._labels(state.step)
        micro = options.batch // options.accumulate
        parts = torch.zeros(len(self.names) - 1, dtype=state.sums.dtype, device=self.device)
        for i in range(options.accumulate):
            last = i == options.accumulate - 1
            rows = slice(i * micro, (i + 1) * micro)
            output = self._micro_step([x[rows] for x in images], None if labels is None else labels[rows], rows, last)
            parts += torch.stack([x.to(parts.dtype) for x in output.parts.values()]) / options.accumulate
            z = output.embeddings.to(state.gram.dtype)
            state.gram.addmm_(z.T, z)
        self._finish(torch.cat([parts, self._clipped_norm().to(parts.dtype).view(1)]))

    def _micro_step(self, images: list[Tensor], labels: Tensor | None, rows: slice, last: bool) -> StepOutput:
        """Add the gradients of some rows of the batch; processes share theirs after the last."""
        draws = self._draws(self.state.step, rows.start, len(images[0]))
        views = self._views(images, draws, self.batches.cropped)
        wait = self._wrapped.no_sync() if self._wrapped is not None and not last else contextlib.nullcontext()
        with wait:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.autocast):
                output = self._forward(views, draws, labels)
            (output.loss / self.options.accumulate).backward()
        return output

    def _finish(self, parts: Tensor) -> None:
        """Update the weights, unless this or an earlier step was bad; then count."""
        state = self.state
        bad = ~torch.isfinite(parts).all()
        if dist.is_initialized():
            flag = bad.float()
            dist.all_reduce(flag, dist.ReduceOp.MAX)
            bad = flag > 0
        newly = bad & (state.bad_step < 0)
        state.bad_step.copy_(torch.where(newly, state.step, state.bad_step))
        state.bad_parts.copy_(torch.where(newly, parts, state.bad_parts))
        stopped = state.bad_step >= 0
        self._found_bad.copy_(stopped)
        self.optimizer.step()
        self.method.after_step(torch.where(stopped, 1.0, self.momenta.take(state.step)))
        state.sums += parts
        state.step += 1

    def _clipped_norm(self) -> Tensor:
        """Norm of the gradient as it was before it is clipped."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if self.options.clip_norm > 0:
            nn.utils.clip_grads_with_norm_(self.parameters, self.options.clip_norm, norm)
        return norm

    def _labels(self, step: Tensor) -> Tensor | None:
        return self.batches.labels(step) if self.method.needs_labels else None

    def _draws(self, step: Tensor, offset: int, count: int) -> Draws:
        first = self.options.first_position + offset
        return Draws(self.seed, step, torch.arange(first, first + count, device=self.device))

    # Preparation

    def _trial_forward(self) -> StepOutput:
        step = torch.zeros((), dtype=torch.int64, device=self.device)
        micro = self.options.batch // self.options.accumulate
        images = [x[:micro] for x in self.batches.fetch(step)]
        labels = self._labels(step)
        draws = self._draws(step, 0, micro)
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.autocast):
            views = self.views(images, draws, self.batches.cropped)
            output: StepOutput = self.method(views, draws, None if labels is None else labels[:micro])
            return output

    def _trial_step(self) -> None:
        """A step as if it were the first: a run that is resumed near its end has no more of them in its schedules."""
        self.state.step.zero_()
        self._run()

    def _capture(self) -> None:
        """Warm up on a side stream (compilation, algorithm choice, buffers), then record the step."""
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._trial_step()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._run()
        self._graph = graph

    @contextlib.contextmanager
    def _leaving_no_trace(self, *state: Tensor) -> Iterator[None]:
        """Put back weights, buffers, optimiser, random numbers and ``state`` afterwards."""
        moments = [x for s in self.optimizer.state.values() for x in s.values() if isinstance(x, Tensor)]
        tensors = [*self.method.parameters(), *self.method.buffers(), *moments, *state, self._found_bad]
        saved = [x.detach().clone() for x in tensors]
        try:
            with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
                yield
        finally:
            with torch.no_grad():
                for x, value in zip(tensors, saved, strict=True):
                    x.copy_(value)


def _compiled(function: Callable[..., Any], method: Method) -> Callable[..., Any]:
    """The function compiled; without the fusion that torch 2.11 fails in where batch norm is in groups."""
    return torch.compile(function, options={"triton.mix_order_reduction": False} if method.groups > 1 else None)
