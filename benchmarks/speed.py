"""Training speed on one GPU: the whole step of VJE and of every other method, and lightly's SimSiam beside them.

    python benchmarks/speed.py --data-dir data --out results/speed-h200.json
    python benchmarks/speed.py --data-dir data --only cifar10/graph lightly
    python benchmarks/speed.py --data-dir data --warm --together --only methods

VJE: the recipes ``cifar10`` and ``cifar10-ema`` as ``vje train`` builds them (ResNet-18, batch 256, bfloat16 encoder),
each eager, compiled, and compiled + captured as one CUDA graph; the other methods as captured graphs, with their own
recipes' heads but the same batch. A step is everything from uint8 images on the device to
updated weights: fetching the batch, augmentation, forward, backward, optimiser, EMA; an epoch's shuffle falls into its
first step. What ``vje train`` does between steps (reading the loss every 25, k-NN, checkpoints) is left out.

lightly's SimSiam (``lightly_simsiam.py``): ``lightly/end-to-end`` applies its transform in a DataLoader of 15 workers,
``lightly/compute`` repeats one batch that stays on the device.

A step of batch 256 counts as 256 images, though each gives two views. After warm-up, windows of steps are timed, each
from an idle device to an idle device; the table shows their median. "first step" is the time from nothing to the end of
the first step, data already read: building, compiling with empty caches, capturing (the first case to compile also
loads the compiler). Memory is the peak that PyTorch allocated, the data set included.

With ``--together`` every case has a process of its own, all are built first, and their windows take turns, so that what
drifts (clocks, heat) drifts for all; first steps mean nothing then.
"""

import argparse
import gc
import importlib.util
import itertools
import multiprocessing
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from vje.build import build_loop, resolve_device, set_determinism
from vje.build_data import Data, build_data
from vje.config import Config
from vje.environment import environment
from vje.methods import method_names
from vje.networks.encoders import build_encoder
from vje.recipes import load_recipe
from vje.runs import write_json
from vje.training.distributed import World

RECIPES = ("cifar10", "cifar10-ema")
METHODS = tuple(f"cifar10-{name}" for name in method_names() if name != "vje")
MODES: dict[str, dict[str, Any]] = {  # the one in use comes first, so that its first step is timed from cold
    "graph": {"compile": "on", "graph": "on"},
    "compiled": {"compile": "on", "graph": "off"},
    "eager": {"compile": "off", "graph": "off"},
}
PEERS = ("lightly/compute", "lightly/end-to-end")
NAMES = (
    *(f"{recipe}/{mode}" for recipe in RECIPES for mode in MODES),
    *(f"{recipe}/graph" for recipe in METHODS),
    *PEERS,
)
GROUPS = {"methods": [f"{recipe}/graph" for recipe in (*RECIPES, *METHODS)]}

Step = Callable[[], object]


@dataclass(frozen=True)
class Plan:
    names: tuple[str, ...] = NAMES
    windows: int = 7
    steps: int = 100
    warmup: int = 100
    lead: int = 40  # steps before each window that had to wait for other cases'
    batch: int = 256
    size: int = 32
    encoder: str = "resnet18"
    workers: int = 15
    warm: bool = False


SMOKE = Plan((*(f"{r}/eager" for r in RECIPES), *PEERS), 2, 2, 1, 1, batch=8, size=16, encoder="resnet8", workers=0)


@dataclass(frozen=True)
class Result:
    name: str
    images_per_second: float
    lowest: float
    highest: float
    ms_per_step: float
    first_step_seconds: float
    peak_memory_gib: float | None
    windows: list[float]


class Case:
    """One case, built and warmed up, whose windows of steps can be timed."""

    def __init__(self, name: str, plan: Plan, data: Data, device: torch.device) -> None:
        self.name, self.plan, self.device = name, plan, device
        self.times: list[float] = []
        began = time.perf_counter()
        self.step = build(name, plan, data, device)
        self.seconds(1)
        self.first = time.perf_counter() - began
        self.seconds(plan.warmup)

    def seconds(self, steps: int) -> float:
        """How long so many steps take, from an idle device to an idle device."""
        began = time.perf_counter()
        for _ in range(steps):
            self.step()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - began

    def window(self) -> None:
        self.times.append(self.seconds(self.plan.steps))

    def result(self) -> Result:
        speeds = [self.plan.steps * self.plan.batch / t for t in self.times]
        milliseconds = 1000 * statistics.median(self.times) / self.plan.steps
        memory = torch.cuda.max_memory_allocated(self.device) / 2**30 if self.device.type == "cuda" else None
        middle, first = statistics.median(speeds), self.first
        return Result(self.name, middle, min(speeds), max(speeds), milliseconds, first, memory, speeds)


def one_by_one(plan: Plan, folder: Path, device: torch.device) -> Iterator[Result]:
    data = read_data(plan, folder)
    for name in plan.names:
        gc.collect()  # what the last case left
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        compiles = name.endswith(("/compiled", "/graph"))
        with cold_compiler() if compiles and not plan.warm else nullcontext():
            case = Case(name, plan, data, device)
            for _ in range(plan.windows):
                case.window()
        yield case.result()


def together(plan: Plan, folder: Path, device: torch.device, ready: Callable[[], None]) -> Iterator[Result]:
    """Every case in a process of its own; when all are built, their windows take turns on the device."""
    context = multiprocessing.get_context("spawn")
    cases: list[tuple[str, Connection]] = []
    for name in plan.names:
        ours, theirs = context.Pipe()
        context.Process(target=serve, args=(name, plan, folder, device, theirs)).start()
        theirs.close()
        cases.append((name, ours))

    def answer(name: str, case: Connection) -> Any:
        try:
            return case.recv()
        except EOFError:
            raise SystemExit(f"{name} failed; what it said is above") from None

    try:
        for name, case in cases:
            answer(name, case)
        ready()
        for _ in range(plan.windows):
            for name, case in cases:
                case.send("window")
                answer(name, case)
        for name, case in cases:
            case.send("result")
            yield answer(name, case)
    finally:
        for _, case in cases:
            case.close()  # whoever still waits for a word goes home


def serve(name: str, plan: Plan, folder: Path, device: torch.device, parent: Connection) -> None:
    """A case's process: does what it is told, one word at a time."""
    set_determinism(False)
    case = Case(name, plan, read_data(plan, folder), device)
    with suppress(EOFError, BrokenPipeError):  # the parent is gone
        parent.send("built")
        while parent.recv() == "window":
            case.seconds(plan.lead)  # clocks up, and what a loader prepared in the pause used up
            case.window()
            parent.send("timed")
        parent.send(case.result())


@contextmanager
def cold_compiler() -> Iterator[None]:
    """Nothing compiled for an earlier case, in this process or on disk, is used again."""
    from torch._inductor.utils import fresh_cache

    torch.compiler.reset()
    with fresh_cache():
        yield


def vje_step(config: Config, data: Data, device: torch.device) -> Step:
    loop = build_loop(config, data, device, World())
    loop.step.method.train()
    loop.step.warm_up()
    count = itertools.count()

    def step() -> None:
        epoch, place = divmod(next(count), loop.batches.steps_per_epoch)
        if place == 0:
            loop.batches.start_epoch(epoch, 0)
        loop.batches.advance()
        loop.step()

    return step


def lightly_step(end_to_end: bool, plan: Plan, data: Data, device: torch.device) -> Step:
    from lightly_simsiam import build_step, loader_batches

    encoder = build_encoder(plan.encoder, small_images=True)
    if end_to_end:
        assert data.resident is not None
        pixels = data.resident.images.permute(0, 2, 3, 1).contiguous().numpy()
        return build_step(encoder, loader_batches(pixels, plan.size, plan.batch, plan.workers, device), device)
    views = torch.randn(2, plan.batch, 3, plan.size, plan.size, device=device)
    fixed = [view.contiguous(memory_format=torch.channels_last) for view in views]
    return build_step(encoder, itertools.repeat(fixed), device)


def build(name: str, plan: Plan, data: Data, device: torch.device) -> Step:
    group, variant = name.split("/")
    if name in PEERS:
        return lightly_step(variant == "end-to-end", plan, data, device)
    config = configure(group, plan)
    return vje_step(replace(config, run=replace(config.run, **MODES[variant])), data, device)


def configure(recipe: str, plan: Plan) -> Config:
    config = load_recipe(recipe)
    encoder, optimizer = replace(config.encoder, encoder=plan.encoder), replace(config.optimizer, batch=plan.batch)
    return replace(config, data=replace(config.data, size=plan.size), encoder=encoder, optimizer=optimizer)


def random_images(folder: Path, count: int) -> Path:
    """Stand-in for CIFAR-10: speed does not depend on what is in the pictures."""
    pixels = np.random.default_rng(0).integers(0, 256, (count + 16, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(count) % 10
    np.savez(folder / "cifar10.npz", train_images=pixels[:count], train_labels=labels, test_images=pixels[count:])
    return folder


def lightly_version() -> str | None:
    return metadata.version("lightly") if importlib.util.find_spec("lightly") else None


def table(results: list[Result]) -> Table:
    out = Table("", "images/s", "lowest - highest", "ms/step", "first step", "memory", box=None)
    for r in results:
        memory = f"{r.peak_memory_gib:.1f} GiB" if r.peak_memory_gib is not None else "-"
        speed, spread = f"{r.images_per_second:,.0f}", f"{r.lowest:,.0f} - {r.highest:,.0f}"
        out.add_row(r.name, speed, spread, f"{r.ms_per_step:.2f}", f"{r.first_step_seconds:.1f} s", memory)
    return out


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="holds cifar10.npz; else random images")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="case, such as cifar10/graph; cifar10; methods")
    parser.add_argument("--windows", type=int, default=Plan.windows)
    parser.add_argument("--steps", type=int, default=Plan.steps, help="in a window")
    parser.add_argument("--warm", action="store_true", help="use what was compiled before; first steps mean nothing")
    parser.add_argument("--together", action="store_true", help="a process for each case, windows in turns")
    parser.add_argument("--pause", action="store_true", help="with --together: time when Enter is pressed")
    parser.add_argument("--smoke", action="store_true", help="a few tiny steps on the CPU, to see that it runs")
    args = parser.parse_args(arguments)
    args.only = [name for word in args.only or () for name in GROUPS.get(word, [word])]
    known = {*NAMES, *(name.split("/")[0] for name in NAMES)}
    if unknown := set(args.only) - known:
        parser.error(f"--only: no case is called {', '.join(sorted(unknown))}; choose from {', '.join(sorted(known))}")
    if args.pause and not args.together:
        parser.error("--pause waits before the cases of --together are timed: add it")
    if not (args.smoke or torch.cuda.is_available()):
        parser.error("there is no CUDA GPU here; --smoke runs a few tiny steps on the CPU")
    return args


def read_data(plan: Plan, folder: Path) -> Data:
    config = configure(RECIPES[0], plan)
    return build_data(replace(config, data=replace(config.data, data_dir=folder)))


def main(arguments: list[str]) -> None:
    args, console = parse(arguments), Console()
    plan = SMOKE if args.smoke else Plan(windows=args.windows, steps=args.steps, warm=args.warm)
    device = resolve_device("cpu" if args.smoke else "cuda")
    set_determinism(False)
    names = [n for n in plan.names if not args.only or {n, n.split("/")[0]} & set(args.only)]
    if lightly_version() is None and not set(names).isdisjoint(PEERS):
        console.print("lightly is not installed (pip install lightly), so it is skipped")
        names = [name for name in names if name not in PEERS]
    plan = replace(plan, names=tuple(names))
    real = not args.smoke and (args.data_dir / "cifar10.npz").is_file()
    report: dict[str, Any] = {"command": shlex.join(["python", "benchmarks/speed.py", *arguments])}
    report["date"] = datetime.now(UTC).isoformat(timespec="seconds")
    report |= {"cpu_cores": os.cpu_count(), "lightly": lightly_version(), **environment(device)}
    report |= {"data": "cifar10" if real else "random", "plan": asdict(plan)}

    def ready() -> None:
        if args.pause:
            try:
                input(f"{len(names)} cases are built. Press Enter when nothing else runs on the device. ")
            except EOFError:
                raise SystemExit("--pause waits for Enter, and standard input has ended") from None

    with tempfile.TemporaryDirectory() as scratch:
        folder = args.data_dir if real else random_images(Path(scratch), 64 if args.smoke else 50_000)
        cases = together(plan, folder, device, ready) if args.together else one_by_one(plan, folder, device)
        results: list[Result] = []
        for result in cases:
            results.append(result)
            console.print(f"{result.name}: {result.images_per_second:,.0f} images/s")
            if args.out:  # after every case, so that an interruption costs one
                write_json(args.out, report | {"results": [asdict(found) for found in results]})
    console.print(table(results))


if __name__ == "__main__":
    main(sys.argv[1:])
