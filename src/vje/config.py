"""Every setting of a run, as frozen dataclasses. Importable without torch.

A recipe (TOML), the command line and a run's ``config.json`` all speak of these fields and no others.
"""

import dataclasses
import difflib
import functools
import math
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vje.errors import UserError
from vje.fields import from_dict
from vje.methods import check_method, find_method, method_names
from vje.runs import RunFolder

FREE = {"resume": True}
"""Marks what may change when a run is resumed, because it cannot change what the run computes."""


@dataclass(frozen=True)
class DataConfig:
    """Images."""

    data: str = "cifar10"
    """Name of a data set, a folder of images, or an .npz file."""
    data_dir: Path = field(default=Path("data"), metadata=FREE)
    """Where named data sets are looked for, and downloaded to."""
    labels: Path | None = None
    """File of labels for a folder (CSV with columns file,label) or arrays (.npy)."""
    size: int = 32
    """Side of the images the encoder sees."""
    resize: int | None = None
    """Shorter side before the centre crop at evaluation; the default is SIZE."""
    channels: Literal[1, 3] | None = None
    """Colour channels; the default is what the data has."""
    held_out: float = 0.1
    """Fraction held out for evaluation, where the data has no test split."""
    resident: Literal["auto", "always", "never"] = "auto"
    """Keep images on the device, decoded (squares from their middle, if sizes differ), or stream them from workers."""
    workers: int = field(default=8, metadata=FREE)
    """Processes that decode images."""


@dataclass(frozen=True)
class AugmentConfig:
    """Augmentation; where there are two values, they are for view 1 and view 2."""

    crop_area: tuple[float, float] = (0.08, 1.0)
    """Range of the random crop's area, as a fraction of the image's."""
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Range of the crop's aspect ratio."""
    flip: float = 0.5
    """Probability of a horizontal flip."""
    jitter: float = 0.8
    """Probability of colour jitter."""
    brightness: float = 0.4
    """Strength of brightness jitter."""
    contrast: float = 0.4
    """Strength of contrast jitter."""
    saturation: float = 0.2
    """Strength of saturation jitter."""
    hue: float = 0.1
    """Strength of hue jitter."""
    grayscale: float = 0.2
    """Probability of losing all colour."""
    blur: tuple[float, float] = (1.0, 0.1)
    """Probability of a Gaussian blur."""
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    """Range of the blur's standard deviation, in pixels."""
    blur_kernel: int | None = None
    """Width of the blur in pixels, odd; the default is about a tenth of SIZE."""
    solarize: tuple[float, float] = (0.0, 0.2)
    """Probability of solarising."""


@dataclass(frozen=True)
class EncoderConfig:
    """Encoder."""

    encoder: str = "resnet18"
    """resnet8, resnet14, resnet18, resnet34, resnet50, resnet101, or any timm model."""
    small_images: bool = True
    """3x3 first convolution without stride and no max-pooling, for images of 32 px or so."""
    normalization: Literal["batch", "group", "frozen"] = "batch"
    """Kind of normalisation layer."""
    init: str | None = None
    """Weights to start from: a run, a model file, or a pretrained timm model's name."""


@dataclass(frozen=True)
class VJEConfig:
    """VJE."""

    nu: float = 1.0
    """Degrees of freedom of the Student-t likelihood; inf is Gaussian."""
    beta: float = 1.0
    """Weight of the KL term."""
    samples: int = 1
    """Monte-Carlo samples a view; 0 uses the posterior mean."""
    isotropic: bool = False
    """One variance for all features."""
    likelihood: Literal["factorized", "standard"] = "factorized"
    """Direction and norm apart, or a Student-t on the whole embedding."""
    terms: tuple[Literal["directional", "radial", "kl"], ...] = ("directional", "radial", "kl")
    """Loss terms that are on."""
    center_variance: bool = False
    """Unit geometric mean of the variance inside the directional term."""
    target: Literal["stop-gradient", "ema"] = "stop-gradient"
    """Where the target embedding comes from."""
    target_momentum: float = 0.996
    """EMA momentum at the start; it rises to 1 on a cosine."""
    batch_norm: Literal["joint", "separate"] = "joint"
    """Batch-norm statistics over both views together, or each on its own."""
    target_batch_norm: Literal["batch", "running"] = "batch"
    """Statistics that the EMA encoder normalises with."""
    ratio: float = 0.25
    """Bottleneck width of the inference network, as a fraction of the embedding dimension."""


@dataclass(frozen=True)
class OptimizerConfig:
    """Optimisation."""

    epochs: int = 200
    """Passes over the data."""
    schedule_epochs: int | None = None
    """Epochs that the schedules are made for; the default is EPOCHS. With more, a run is the start of a longer one."""
    batch: int = 256
    """Images a step, over all processes."""
    lr: float = 0.05
    """Learning rate after warm-up; it falls to zero on a cosine."""
    optimizer: Literal["sgd", "lars", "adam", "adamw"] = "sgd"
    """SGD with momentum, LARS (for batches of thousands), Adam, or AdamW, whose weight decay is not scaled."""
    lars_trust: float = 1e-3
    """LARS: a step as a share of the weight's norm, at a learning rate of 1."""
    lars_limit: bool = False
    """LARS: --lars-trust is the most a step may be at any learning rate; smaller ones are those of SGD."""
    sgd_momentum: float = 0.9
    """Momentum of SGD and LARS."""
    weight_decay: float = 5e-4
    """Decay of weights, not of normalisation layers and biases."""
    warmup_epochs: float = 10.0
    """Length of the linear warm-up."""
    accumulate: int = 1
    """Micro-batches a batch is split into, to save memory; losses across images then see one at a time."""
    clip_norm: float = 0.0
    """Largest gradient norm; 0 for no limit."""

    def __post_init__(self) -> None:
        if self.schedule_epochs == self.epochs:  # one way of saying it, so that equal runs have equal settings
            object.__setattr__(self, "schedule_epochs", None)

    @property
    def span(self) -> int:
        """Epochs of the schedules.

        >>> OptimizerConfig(epochs=200).span, OptimizerConfig(epochs=200, schedule_epochs=800).span
        (200, 800)
        """
        return self.epochs if self.schedule_epochs is None else self.schedule_epochs

    @property
    def warmup(self) -> float:
        """Warm-up epochs in use: a tenth of the schedule where those asked for would fill more than half of it.

        >>> OptimizerConfig(epochs=200).warmup, OptimizerConfig(epochs=5).warmup
        (10.0, 0.5)
        """
        return self.span / 10 if self.warmup_epochs > self.span / 2 else self.warmup_epochs


@dataclass(frozen=True)
class RunConfig:
    """Run."""

    seed: int = 0
    """Of everything random."""
    device: Literal["auto", "cpu", "cuda", "mps"] = field(default="auto", metadata=FREE)
    """Where to compute."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the encoder; auto is bfloat16 on GPUs. The likelihood is always float32."""
    compile: Literal["auto", "on", "off"] = field(default="auto", metadata=FREE)
    """Compile the step; auto does so on a GPU if the run is long enough to gain."""
    graph: Literal["auto", "on", "off"] = field(default="auto", metadata=FREE)
    """Capture the whole step as a CUDA graph; auto does so whenever it compiles, on one GPU."""
    deterministic: bool = False
    """Bit-identical results on a GPU too, somewhat slower."""
    sync_batch_norm: bool = False
    """Batch-norm statistics over all processes (GPUs only)."""
    knn_every: int = field(default=10, metadata=FREE)
    """Epochs between k-NN evaluations; 0 for none."""
    checkpoint_epochs: int = field(default=10, metadata=FREE)
    """Epochs between checkpoints."""
    checkpoint_seconds: float = field(default=300.0, metadata=FREE)
    """Longest time between checkpoints."""
    tensorboard: bool = field(default=False, metadata=FREE)
    """Write TensorBoard events too."""
    ood_views: Literal["one", "mirror", "ten"] = field(default="one", metadata=FREE)
    """Views of each image that `vje ood` scores, unless told otherwise: see its --views."""


@dataclass(frozen=True)
class Config:
    """A whole run."""

    recipe: str = "cifar10"
    method: str = "vje"
    data: DataConfig = DataConfig()
    augment: AugmentConfig = AugmentConfig()
    encoder: EncoderConfig = EncoderConfig()
    settings: Any = VJEConfig()  # of the method; see settings_type
    optimizer: OptimizerConfig = OptimizerConfig()
    run: RunConfig = RunConfig()

    def check(self) -> None:
        """Refuse values that cannot work, before anything is loaded."""
        _require(self.optimizer.epochs >= 1, "--epochs", self.optimizer.epochs, "at least 1")
        span, epochs = self.optimizer.span, self.optimizer.epochs
        least = f"EPOCHS ({epochs}) or more (on --resume, --schedule-epochs {epochs} --extend makes it so)"
        _require(span >= epochs, "--schedule-epochs", span, least)
        _require(self.optimizer.batch >= 2, "--batch", self.optimizer.batch, "at least 2")
        _require(0 < self.optimizer.lr < math.inf, "--lr", self.optimizer.lr, "positive, and finite")
        _require(self.optimizer.accumulate >= 1, "--accumulate", self.optimizer.accumulate, "at least 1")
        _require(self.optimizer.warmup_epochs >= 0, "--warmup-epochs", self.optimizer.warmup_epochs, "0 or more")
        _require(0 <= self.optimizer.sgd_momentum < 1, "--sgd-momentum", self.optimizer.sgd_momentum, "in [0, 1)")
        decay, trust = self.optimizer.weight_decay, self.optimizer.lars_trust
        _require(0 <= decay < math.inf, "--weight-decay", decay, "0 or more, and finite")
        _require(0 < trust < math.inf, "--lars-trust", trust, "positive, and finite")
        _require(self.optimizer.clip_norm >= 0, "--clip-norm", self.optimizer.clip_norm, "0 or more")
        a = self.augment
        chances = [a.flip, a.jitter, a.grayscale, *a.blur, *a.solarize]
        names = "--flip, --jitter, --grayscale, --blur and --solarize"
        _require(all(0 <= p <= 1 for p in chances), names, chances, "probabilities, between 0 and 1")
        for name in ("brightness", "contrast", "saturation"):
            _require(0 <= getattr(a, name) < math.inf, f"--{name}", getattr(a, name), "0 or more, and finite")
        _require(0 <= a.hue <= 0.5, "--hue", a.hue, "between 0 and 0.5, which is half a turn")
        _check_method(self.settings)
        _require(self.data.size >= 4, "--size", self.data.size, "at least 4")
        _require(0 < self.data.held_out < 1, "--held-out", self.data.held_out, "between 0 and 1")
        _require(0 <= self.run.seed < 2**32, "--seed", self.run.seed, "between 0 and 2**32 - 1")
        _require(self.data.workers >= 0, "--workers", self.data.workers, "0 or more")
        _require(self.run.knn_every >= 0, "--knn-every", self.run.knn_every, "0 or more")
        _require(self.run.checkpoint_seconds >= 0, "--checkpoint-seconds", self.run.checkpoint_seconds, "0 or more")
        _require(self.run.checkpoint_epochs >= 1, "--checkpoint-epochs", self.run.checkpoint_epochs, "at least 1")
        low, high = self.augment.crop_area
        _require(0 < low <= high <= 1, "--crop-area", self.augment.crop_area, "two numbers, 0 < low <= high <= 1")
        low, high = self.augment.crop_ratio
        _require(0 < low <= high < math.inf, "--crop-ratio", self.augment.crop_ratio, "two numbers, 0 < low <= high")
        kernel = self.augment.blur_kernel
        _require(kernel is None or (kernel > 0 and kernel % 2 == 1), "--blur-kernel", kernel, "positive and odd")
        low, high = self.augment.blur_sigma
        _require(0 < low <= high < math.inf, "--blur-sigma", self.augment.blur_sigma, "two numbers, 0 < low <= high")
        resize = self.data.resize
        _require(resize is None or resize >= self.data.size, "--resize", resize, f"SIZE ({self.data.size}) or more")
        micro, accumulate = self.optimizer.batch, self.optimizer.accumulate
        _require(micro % accumulate == 0, "--accumulate", accumulate, f"a divisor of --batch {micro}")


def _check_method(settings: Any) -> None:
    """What a method's own constructor would find out too late, after the data is loaded."""
    momentum = getattr(settings, "target_momentum", 1.0)
    _require(0 <= momentum <= 1, "--target-momentum", momentum, "between 0 and 1")
    if isinstance(settings, VJEConfig):
        _require(settings.nu > 0, "--nu", settings.nu, "positive (inf is the Gaussian limit)")
        _require(0 <= settings.beta < math.inf, "--beta", settings.beta, "0 or more, and finite")
        _require(settings.samples >= 0, "--samples", settings.samples, "0 or more")
        _require(len(settings.terms) > 0, "--terms", settings.terms, "at least one of directional, radial, kl")
        _require(0 < settings.ratio < math.inf, "--ratio", settings.ratio, "positive, and finite")


@functools.cache
def settings_type(method: str) -> type[Any]:
    """The dataclass of a method's settings: those that its constructor takes, with its defaults and its words.

    VJE's are spelled out above, so that its help and its mistakes need no torch.

    >>> settings_type("simsiam")().bottleneck
    512
    """
    check_method(method)
    if method == "vje":
        return VJEConfig
    cls = find_method(method)
    hints = typing.get_type_hints(cls.__init__)
    given = {name: p for name, p in cls.settings().items() if name != "classes"}  # those are the data's to say
    fields = [(name, hints[name], field(default=p.default)) for name, p in given.items()]
    return dataclasses.make_dataclass(f"{cls.__name__}Config", fields, frozen=True, namespace={"__doc__": cls.__doc__})


def _require(holds: bool, option: str, value: object, what: str) -> None:
    if not holds:
        raise UserError(f"{option} must be {what}, got {value}.")


# Dictionaries and back


def to_dict(config: Config) -> dict[str, Any]:
    """A config as nested dictionaries; the method's settings go by the method's name."""
    values = dataclasses.asdict(config)
    return {config.method if name == "settings" else name: value for name, value in values.items()}


def read_config(values: dict[str, Any], origin: str) -> Config:
    """A config from nested dictionaries. Tables of other methods than the chosen one are passed over.

    >>> read_config({"method": "vje", "vje": {"nu": 2}, "simsiam": {"hidden": 64}}, "example").settings.nu
    2.0
    """
    method = str(values.get("method", "vje"))
    given = values.get(method, {})
    if not isinstance(given, dict):
        raise UserError(f"{origin}: {method} must be a table of settings, got {given!r}.")
    settings = from_dict(settings_type(method), given, f"{origin}: {method}")
    others = {name: value for name, value in values.items() if name not in method_names()}
    for name in ("settings", *difflib.get_close_matches(method, others, n=1)):
        if name in others:
            raise UserError(f"{origin}: there is no table {name}; that of the method is called [{method}].")
    return dataclasses.replace(from_dict(Config, others, origin), settings=settings)


def stored_config(folder: RunFolder) -> Config:
    """The config of a run."""
    values = folder.read("config")
    values.pop("schema", None)
    return read_config(values, str(folder.config_file))


# Resuming


def changed_fields(old: Config, new: Config) -> dict[str, tuple[Any, Any, bool]]:
    """Settings that differ: name -> (old, new, whether a resumed run may change it).

    >>> changed_fields(Config(), dataclasses.replace(Config(), run=RunConfig(seed=1, knn_every=5)))
    {'seed': (0, 1, False), 'knn_every': (10, 5, True)}
    """
    changes: dict[str, tuple[Any, Any, bool]] = {}
    for group in dataclasses.fields(Config):
        before, after = getattr(old, group.name), getattr(new, group.name)
        if not dataclasses.is_dataclass(before):
            if before != after:
                changes[group.name] = (before, after, False)
            continue
        for f in dataclasses.fields(before):
            a, b = getattr(before, f.name), getattr(after, f.name)
            if a != b and not (isinstance(a, float) and math.isnan(a)):
                changes[f.name] = (a, b, bool(f.metadata.get("resume")))
    return changes
