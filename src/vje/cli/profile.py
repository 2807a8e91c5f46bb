"""``vje profile``: what training methods cost, as a table like the paper's tab:compute, or as JSON."""

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from vje.cli.checks import at_least
from vje.config import Config
from vje.errors import UserError
from vje.methods import method_names
from vje.recipes import load_recipe
from vje.terminal import print_columns

if TYPE_CHECKING:
    import torch

    from vje.evaluation.profile import Costs, Timing

METHODS = ("vje", "vje-ema", "simsiam", "byol", "vicreg")
EMA = "-ema"
REFERENCE = "simsiam"
LARGE = 96
"""Images of this size and more have the heads of the ImageNet recipes, smaller ones those of CIFAR."""
COLUMNS = {
    "head_params_m": "head\nparams, M",
    "trainable_params_m": "trainable\nparams, M",
    "total_params_m": "total\nparams, M",
    "encoder_passes": "encoder\npasses",
    "forward_gflops": "forward\nGFLOPs/image",
    "step_gflops": "step\nGFLOPs/image",
    "peak_memory_gb": "peak\nmemory, GB",
    "images_per_second": "images/s",
    "relative_throughput": f"speed\n{REFERENCE} = 1",
}


@dataclass(frozen=True)
class Options:
    """Parameters, passes through the encoder and operations of training methods; on a GPU, speed and memory too.

    Operations are those of matrix products and convolutions, a multiplication and an addition being two. A step counts
    what gradients flow back through three times: forward, and back by inputs and by weights. Speed and memory are those
    of whole training steps (forward, backward, SGD) on random images that are on the device already.
    """

    methods: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="METHOD")]] = METHODS
    """Methods, each with the heads of its recipe; vje-ema is vje with an EMA target."""
    encoder: str = "resnet50"
    """resnet8, resnet14, resnet18, resnet34, resnet50, resnet101, or any timm model."""
    size: int = 224
    """Side of the images; those under 96 px have the recipes' encoder stem and heads for CIFAR."""
    batch: int = 256
    """Images a step; losses that look across images depend on it."""
    measure: bool = False
    """Measure speed on a CPU too; on a GPU it is measured anyway, unless --device cpu is given."""
    windows: int = 5
    """Turns that each method has; a speed is the median."""
    steps: int = 3
    """Steps a turn."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of the encoder in the steps that are measured; TensorFloat-32 is not used."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to measure; counting needs no device."""
    json: bool = False
    """Print a JSON list instead of a table."""


def run(arguments: list[str]) -> int:
    """Count, measure and print."""
    options = tyro.cli(Options, args=arguments, prog="vje profile")
    _check(options)

    from vje.build import resolve_device, set_determinism

    methods = list(dict.fromkeys(options.methods or METHODS))
    rows = [{"method": name} | count_row(name, options) for name in methods]
    device = resolve_device(options.device)
    if device.type == "cuda" or options.measure:
        set_determinism(deterministic=False)
        timings = measure(methods, options, device)
        rows = [row | timing_row(timings[row["method"]]) for row in rows]
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        print_table(rows, options)
    return 0


def _check(options: Options) -> None:
    for name in options.methods:
        if name != "vje-ema" and name not in method_names():
            raise UserError(f"there is no method {name!r}; methods: {', '.join([*method_names(), 'vje-ema'])}.")
    at_least(4, size=options.size)
    at_least(2, batch=options.batch)
    at_least(1, windows=options.windows, steps=options.steps)


def method_config(name: str, options: Options) -> Config:
    """The recipe of a method at the scale of the images, with the encoder and size that were asked for."""
    method = name.removesuffix(EMA) if name == f"vje{EMA}" else name
    config = load_recipe("imagenet1k" if options.size >= LARGE else "cifar10", method)
    if method == "vje":  # some recipes have an EMA target and some have not
        target = "ema" if name != method else "stop-gradient"
        config = replace(config, settings=replace(config.settings, target=target))
    data = replace(config.data, size=options.size, resize=None)
    small = config.encoder.small_images and options.encoder.startswith("resnet")  # no other has a stem to change
    return replace(config, data=data, encoder=replace(config.encoder, encoder=options.encoder, small_images=small))


def _classes(options: Options) -> int:
    """Those of the data sets whose recipes serve images of that size: ImageNet and CIFAR-10."""
    return 1000 if options.size >= LARGE else 10


def _build(name: str, options: Options) -> Any:
    from vje.build import build_method
    from vje.preprocessing import Preprocessing

    prepare = Preprocessing(options.size, options.size, 3, [0.5] * 3, [0.25] * 3)
    return build_method(method_config(name, options), prepare, _classes(options))


def count_row(name: str, options: Options) -> dict[str, Any]:
    """A method's counts, rounded as they are printed."""
    import torch

    from vje.evaluation.profile import count_costs

    with torch.device("meta"):
        model = _build(name, options)
    if options.batch % model.groups:
        raise UserError(f"{name} divides a batch into {model.groups} parts: --batch must be a multiple of that.")
    costs: Costs = count_costs(model, options.batch, options.size)
    passes = costs.encoder_passes
    return {
        "head_params_m": round(costs.head_parameters / 1e6, 1),
        "trainable_params_m": round(costs.trainable_parameters / 1e6, 1),
        "total_params_m": round(costs.total_parameters / 1e6, 1),
        "encoder_passes": int(passes) if passes == int(passes) else round(passes, 1),
        "forward_gflops": round(costs.forward_flops / 1e9, 1),
        "step_gflops": round(costs.step_flops / 1e9, 1),
    }


def measure(methods: list[str], options: Options, device: "torch.device") -> "dict[str, Timing]":
    """Speed and memory of each method; SimSiam, which they are compared with, takes part in any case."""
    import torch

    from vje.cli.console import counting
    from vje.evaluation.profile import TimedStep, race

    torch.manual_seed(0)
    shape, autocast = (options.batch, 3, options.size, options.size), options.precision == "bfloat16"
    steps = {}
    try:
        views = [torch.randn(shape, device=device).contiguous(memory_format=torch.channels_last) for _ in range(2)]
        for name in dict.fromkeys([*methods, REFERENCE]):
            model = _build(name, options).to(device, memory_format=torch.channels_last)
            steps[name] = TimedStep(model, views, _classes(options), autocast)
        with counting("windows") as report:
            return race(steps, REFERENCE, options.windows, options.steps, min(3, options.steps), report)
    except torch.OutOfMemoryError:
        raise UserError(
            f"there is not enough GPU memory for a batch of {options.batch}: use a smaller --batch, or --device cpu to "
            "count without measuring."
        ) from None


def timing_row(timing: "Timing") -> dict[str, Any]:
    """A method's measurements, rounded as they are printed."""
    return {
        "peak_memory_gb": None if timing.peak_bytes is None else round(timing.peak_bytes / 1e9, 1),
        "images_per_second": round(timing.images_per_second, 1),
        "relative_throughput": round(timing.relative, 2),
    }


def print_table(rows: list[dict[str, Any]], options: Options) -> None:
    """The rows for a person."""
    title = f"{options.encoder} at {options.size} px, batch {options.batch}"
    if "images_per_second" in rows[0]:
        title += f", {options.precision}"
    columns = [name for name in COLUMNS if rows[0].get(name) is not None]
    cells = [[row["method"], *(f"{row[name]:,}" for name in columns)] for row in rows]
    print_columns(["method", *map(COLUMNS.__getitem__, columns)], cells, title)
