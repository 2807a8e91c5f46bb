"""How fast `vje score` gets through a folder: decoding alone, the model alone, and the command's own path.

    python benchmarks/scoring.py --out results/scoring-h200.json
    python benchmarks/scoring.py --device cpu --only cifar/32px

Each case writes random JPEG files of one size into a scratch folder and scores them with an untrained model, as speed
does not depend on weights. "decode" reads, resizes and crops every file with the workers and stops. "model"
repeats one batch of decoded images: normalisation, encoder, posterior and likelihood, scores back on the host. "stream"
is :meth:`vje.ood.Detector.stream`, what `vje score` runs, with decoding and model side by side. Each is repeated, the
files in the system's cache from the first pass on; the table shows medians. Memory is the process's peak so far, taken
after one pass over a quarter of the files and after the last pass: flat means equal.
"""

import argparse
import os
import resource
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from vje.build import resolve_device, set_determinism
from vje.data.batches import evaluation_batches
from vje.data.folders import scan_paths
from vje.data.sources import ImageSource
from vje.environment import environment
from vje.methods.vje import VJE
from vje.networks.encoders import build_encoder
from vje.ood import Detector
from vje.preprocessing import Preprocessing
from vje.runs import write_json


@dataclass(frozen=True)
class Case:
    name: str
    encoder: str
    small_images: bool
    preprocessing: tuple[int, int]  # resize, crop
    side: int  # of the files
    files: int


CASES = (
    Case("cifar/32px", "resnet18", True, (32, 32), 32, 20_000),
    Case("imagenet/500px", "resnet50", False, (256, 224), 500, 4_000),
    Case("imagenet/photo", "resnet50", False, (256, 224), 3000, 200),
)
SMOKE = (Case("smoke", "resnet8", True, (16, 16), 24, 24),)


@dataclass(frozen=True)
class Result:
    name: str
    files: int
    workers: int
    batch: int
    decode: float
    model: float
    stream: float
    memory_mib_after_a_quarter: float
    memory_mib_at_the_end: float


def measure(case: Case, device: torch.device, workers: int, batch: int, repeats: int) -> Result:
    resize, crop = case.preprocessing
    prepare = Preprocessing(resize, crop, 3, [0.5] * 3, [0.25] * 3)
    encoder = build_encoder(case.encoder, small_images=case.small_images)
    detector = Detector(VJE(encoder, preprocessing=prepare).to(device, memory_format=torch.channels_last))
    with tempfile.TemporaryDirectory() as scratch:
        write_files(Path(scratch), case.side, case.files)
        source = scan_paths([scratch])
        few = source.subset(np.arange(max(1, len(source) // 4)))
        exhaust(detector.stream(few, batch_size=batch, workers=workers))
        early = peak_memory()
        stream = rate(lambda: exhaust(detector.stream(source, batch_size=batch, workers=workers)), case.files, repeats)
        late = peak_memory()
        decode = rate(lambda: exhaust(evaluation_batches(source, prepare, batch, workers)), case.files, repeats)
        model = model_rate(detector, source, prepare, min(batch, case.files), repeats)
    return Result(case.name, case.files, workers, batch, decode, model, stream, early, late)


def model_rate(detector: Detector, source: ImageSource, prepare: Preprocessing, batch: int, repeats: int) -> float:
    images = next(iter(evaluation_batches(source, prepare, batch))).images
    times = 50 if torch.cuda.is_available() else 2

    def score() -> None:
        for _ in range(times):
            detector.score(images)  # its numbers end on the host, so the device is done

    score()
    return rate(score, times * len(images), repeats)


def rate(action: Callable[[], None], images: int, repeats: int) -> float:
    """Median images a second."""
    speeds = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        speeds.append(images / (time.perf_counter() - began))
    return statistics.median(speeds)


def exhaust(items: Iterable[object]) -> None:
    for _ in items:
        pass


def write_files(folder: Path, side: int, count: int) -> None:
    """Smooth noise, so that files are about as large as photographs of their size."""
    coarse = np.random.default_rng(0).integers(0, 256, (64, 16, 16, 3), dtype=np.uint8)
    pictures = [Image.fromarray(x).resize((side, side), Image.Resampling.BICUBIC) for x in coarse]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda i: pictures[i % 64].save(folder / f"{i:06}.jpg", quality=90), range(count)))


def peak_memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--only", nargs="+", choices=[case.name for case in CASES])
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--workers", type=int, default=min(16, os.cpu_count() or 1), help="threads or processes that decode"
    )
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--files", type=int, default=20_000, help="at most, in each case")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--smoke", action="store_true", help="a few tiny files, to see that it runs")
    args, console = parser.parse_args(arguments), Console()
    device = resolve_device(args.device)
    set_determinism(False)
    report = {"command": shlex.join(["python", "benchmarks/scoring.py", *arguments])}
    report |= {"date": datetime.now(UTC).isoformat(timespec="seconds")}
    results: list[Result] = []
    table = Table("", "files", "decode", "model", "stream (images/s)", "memory (MiB)", box=None)
    for case in SMOKE if args.smoke else [c for c in CASES if not args.only or c.name in args.only]:
        r = measure(replace(case, files=min(case.files, args.files)), device, args.workers, args.batch, args.repeats)
        results.append(r)
        memory = f"{r.memory_mib_after_a_quarter:,.0f} - {r.memory_mib_at_the_end:,.0f}"
        table.add_row(r.name, f"{r.files:,}", f"{r.decode:,.0f}", f"{r.model:,.0f}", f"{r.stream:,.0f}", memory)
        if args.out:
            machine = {"cpu_cores": os.cpu_count(), **environment(device)}
            write_json(args.out, report | machine | {"results": [asdict(result) for result in results]})
    console.print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
