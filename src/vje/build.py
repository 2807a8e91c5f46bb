"""From a config to objects, with build_data.py: the only places that know both."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from vje.build_data import Data
from vje.config import AugmentConfig, Config
from vje.data.augment import Augmentation
from vje.data.sources import ImageSource
from vje.data.stream import Crops
from vje.errors import UserError
from vje.evaluation.rank import effective_rank_of_gram
from vje.methods import find_method
from vje.methods.method import Method
from vje.models import load, start_from
from vje.networks.encoders import Encoder, UnknownEncoder, build_encoder
from vje.preprocessing import Preprocessing
from vje.runs import RunFolder
from vje.training.alarms import CollapseWatch
from vje.training.batches import Batches, ResidentBatches, StreamBatches
from vje.training.distributed import World
from vje.training.loop import Callback, Loop
from vje.training.optimizer import build_optimizer
from vje.training.schedules import cosine_to_one, warmup_cosine
from vje.training.step import StepOptions, TrainStep, Views

COMPILE_STEPS = 2000
"""Runs of fewer steps do not win back the time that compiling takes."""


def resolve_device(name: str, local_rank: int = 0) -> torch.device:
    """The device a config asks for, with an error if it is not there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: no CUDA GPU is usable here; use --device cpu, or auto.")
    if name == "mps" and not torch.backends.mps.is_available():
        raise UserError("--device mps: Apple's Metal is not usable here; use --device cpu, or auto.")
    return torch.device(name, local_rank) if name == "cuda" else torch.device(name)


def set_determinism(deterministic: bool) -> None:
    """Choose between the fastest algorithms and repeatable ones."""
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = not deterministic
    torch.backends.cudnn.allow_tf32 = False  # float32 means float32; training uses bfloat16 where that will do


# Model


def build_augmentations(settings: AugmentConfig, size: int) -> list[Augmentation]:
    """One augmentation a view."""
    shared = {"area": settings.crop_area, "ratio": settings.crop_ratio, **vars(settings)}
    del shared["crop_area"], shared["crop_ratio"]
    shared["blur_kernel"] = settings.blur_kernel or max(3, round(0.1 * size) // 2 * 2 + 1)
    apart = zip(settings.blur, settings.solarize, strict=True)
    return [Augmentation(size, **shared | {"blur": blur, "solarize": solarize}) for blur, solarize in apart]


def build_method(
    config: Config, preprocessing: Preprocessing, classes: int | None = None, known: dict[str, Any] | None = None
) -> Method:
    """The model a config describes, with its initial weights.

    Args:
        config: of the run.
        preprocessing: of its data.
        classes: of its data, for methods that learn from labels.
        known: the architecture of the encoder, where weights will come from a checkpoint: --init is no longer needed.
    """
    init = config.encoder.init if known is None else None
    from_model = init is not None and (Path(init).exists() or "/" in init or init.endswith(".safetensors"))
    method, options = find_method(config.method), dict(vars(config.settings))
    if method.needs_labels:
        if classes is None:
            raise UserError(
                f"--method {config.method} learns from labels, and {config.data.data} has none: give --labels FILE."
            )
        if classes == 1:
            raise UserError(
                f"--method {config.method} has nothing to learn: the training images of {config.data.data} are all of "
                "one class."
            )
        options["classes"] = classes
    if known is None:
        encoder = _build_encoder(config, preprocessing.channels, None if from_model else init)
    else:
        encoder = build_encoder(**known)
    try:
        model: Method = method(encoder, **options, preprocessing=preprocessing)
    except ValueError as error:  # a combination that only the networks can judge
        raise UserError(_as_options(str(error), vars(config.settings))) from None
    if init is not None and from_model:
        start_from(model, load(init))
    return model


def _build_encoder(config: Config, channels: int, pretrained: str | None) -> Encoder:
    """The encoder a config describes, or the model of timm's whose pretrained weights --init asks for."""
    settings = config.encoder
    try:
        return build_encoder(
            pretrained or settings.encoder,
            channels=channels,
            small_images=settings.small_images,
            normalization=settings.normalization,
            image_size=config.data.size,
            pretrained=pretrained is not None,
        )
    except ValueError as error:  # a name or a combination that only the networks can judge
        unknown = pretrained is not None and isinstance(error, UnknownEncoder)
        not_there = f"--init {pretrained}: there is no run or model of that path, and " if unknown else ""
        raise UserError(not_there + _as_options(str(error), ["normalization", "small_images"])) from None
    except Exception as error:
        if pretrained is None:
            raise
        reason = (str(error).splitlines() or [""])[0]  # of what timm uses to download, or of a damaged file
        raise UserError(
            f"--init {pretrained}: the pretrained weights could not be had ({type(error).__name__}: {reason}). timm "
            "downloads them once: try again with a network, or start without --init."
        ) from error


def _as_options(message: str, names: Iterable[str]) -> str:
    """What a constructor says of its arguments, said of the options they came from.

    >>> _as_options("kl_weight must be 0 or more, got -1.0", ["kl_weight", "hidden"])
    '--kl-weight must be 0 or more, got -1.0'
    """
    words = "|".join(map(re.escape, names))
    return re.sub(rf"\b(?:{words})\b", lambda name: "--" + name[0].replace("_", "-"), message) if words else message


# Training


def _classes(labels: NDArray[np.int64]) -> int:
    """Classes numbered from 0 up to the largest label; one, whatever its number, where all images share it.

    >>> _classes(np.array([0, 3, 3])), _classes(np.array([3, 3]))
    (4, 1)
    """
    found, largest = len(np.unique(labels)), int(labels.max())
    if found > 1 and largest >= 1000 * found:
        raise UserError(
            f"the largest class number is {largest:,}, and there are {found:,} classes: a classifier needs them "
            "numbered from 0. Give names instead, with --labels FILE."
        )
    return largest + 1 if found > 1 else 1


def build_loop(
    config: Config,
    data: Data,
    device: torch.device,
    world: World,
    run: RunFolder | None = None,
    callbacks: Sequence[Callback] = (),
    known: dict[str, Any] | None = None,
) -> Loop:
    """Everything a config describes, ready to train; ``known`` as for :func:`build_method`."""
    torch.manual_seed(config.run.seed)
    method = _trained_method(config, data, device, world, known)
    settings = config.optimizer
    batches = _build_batches(config, data, device, world, world.share(settings.batch))
    return Loop(
        step=_build_step(config, data, device, world, method, batches),
        batches=batches,
        epochs=settings.epochs,
        world=world,
        watch=CollapseWatch(
            method.encoder.dim,
            _chance(data.splits.test),
            patience=max(3, round(settings.warmup)),
            watch_rank=not method.needs_labels,  # a classifier's features need no more dimensions than classes
            remedy=_collapse_remedy(config),
        ),
        rank_of=effective_rank_of_gram,
        run=run,
        callbacks=callbacks,
        global_batch=settings.batch,
        check_every=25 if device.type == "cuda" and data.resident is not None else 1,
        checkpoint_epochs=config.run.checkpoint_epochs,
        checkpoint_seconds=config.run.checkpoint_seconds,
    )


def _trained_method(
    config: Config, data: Data, device: torch.device, world: World, known: dict[str, Any] | None
) -> Method:
    """The method on the device, with batch norm over all processes if so wanted."""
    labels = data.splits.train.labels
    needed = find_method(config.method).needs_labels
    classes = _classes(labels) if needed and labels is not None else None
    method = build_method(config, data.preprocessing, classes, known).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    if not config.run.sync_batch_norm:
        return method  # type: ignore[no-any-return]
    if method.groups > 1:
        raise UserError(
            f"--groups {method.groups} keeps parts of a batch apart in batch norm, and --sync-batch-norm puts those of "
            "all processes together: use --no-sync-batch-norm, or --groups 1."
        )
    return nn.SyncBatchNorm.convert_sync_batchnorm(method) if world.size > 1 else method  # type: ignore[no-any-return]


def _build_step(
    config: Config, data: Data, device: torch.device, world: World, method: Method, batches: Batches
) -> TrainStep:
    """The step with its schedules, which may be those of a longer run."""
    settings, start = config.optimizer, method.target_momentum
    span = settings.span * batches.steps_per_epoch
    warmup = round(settings.warmup * batches.steps_per_epoch)
    momenta = cosine_to_one(start, span) if method.momentum_rises else torch.full((span,), start)
    share, unused = world.share(settings.batch), method.leaves_unused()
    options = step_options(config, device, world, share, settings.epochs * batches.steps_per_epoch)
    images = share // settings.accumulate
    if images % method.groups:
        raise UserError(
            f"--groups {method.groups} does not divide the {images} images that a process sees at a time: change "
            "--groups or --batch."
        )
    return TrainStep(
        method=method,
        optimizer=build_optimizer(
            method,
            settings.optimizer,
            torch.tensor(settings.lr, device=device),
            settings.sgd_momentum,
            settings.weight_decay,
            method.constant_rate(),
            settings.lars_trust,
            settings.lars_limit,
        ),
        batches=batches,
        views=Views(build_augmentations(config.augment, config.data.size)[: method.views], data.preprocessing),
        learning_rates=warmup_cosine(settings.lr, span, warmup).to(device),
        momenta=momenta.to(device),
        seed=config.run.seed,
        options=options,
        wrapped=DistributedDataParallel(method, find_unused_parameters=unused) if world.size > 1 else None,
    )


def step_options(config: Config, device: torch.device, world: World, share: int, steps: int) -> StepOptions:
    """How steps are carried out on this device."""
    gpu = device.type == "cuda"
    bfloat16 = gpu and torch.cuda.is_bf16_supported()
    compiled = {"on": True, "off": False, "auto": gpu and steps >= COMPILE_STEPS}[config.run.compile]
    captured = {"on": True, "off": False, "auto": gpu and compiled and world.size == 1}[config.run.graph]
    if captured and not (gpu and compiled and world.size == 1):
        raise UserError("--graph on needs --compile on and a single GPU; leave both at auto.")
    if share % config.optimizer.accumulate:
        raise UserError(
            f"--accumulate {config.optimizer.accumulate} does not divide the {share} images of each process."
        )
    if share // config.optimizer.accumulate < 2:
        raise UserError(
            f"--accumulate {config.optimizer.accumulate} leaves one image of the {share} of each process to a pass, "
            "and batch statistics need two: use a larger --batch or a smaller --accumulate."
        )
    return StepOptions(
        batch=share,
        first_position=world.rank * share,
        accumulate=config.optimizer.accumulate,
        clip_norm=config.optimizer.clip_norm,
        autocast={"float32": False, "bfloat16": True, "auto": bfloat16}[config.run.precision],
        compile=compiled,
        capture=captured,
    )


def stream_workers(config: Config) -> int:
    """Processes that decode streamed images: as many as asked for, one a core at most."""
    return min(config.data.workers, os.cpu_count() or 1)


def _build_batches(config: Config, data: Data, device: torch.device, world: World, share: int) -> Batches:
    batch, first, resident = config.optimizer.batch, world.rank * share, data.resident
    count = len(data.splits.train) if resident is None else len(resident.images)
    if count < batch:
        raise UserError(
            f"a batch of {batch} needs at least {batch} training images, and {data.splits.train.name} has {count}: "
            f"use a smaller --batch."
        )
    if resident is not None:
        labels = None if resident.labels is None else resident.labels.to(device)
        return ResidentBatches(resident.images.to(device), batch, share, first, config.run.seed, labels)
    crops = Crops(
        data.splits.train,
        size=config.data.size,
        channels=data.preprocessing.channels,
        seed=config.run.seed,
        area=config.augment.crop_area,
        ratio=config.augment.crop_ratio,
    )
    epochs, workers = config.optimizer.epochs, stream_workers(config)
    return StreamBatches(crops, batch, share, first, epochs=epochs, workers=workers, device=device)


def _collapse_remedy(config: Config) -> str:
    """What to try where the embeddings collapse, without what the run has already."""
    detached = vars(config.settings).get("target") == "stop-gradient"
    return " or ".join(["a lower --lr", "a larger --batch", *(["--target ema"] if detached else [])])


def _chance(test: ImageSource) -> float | None:
    """Accuracy in percent of always guessing the commonest class."""
    if test.labels is None or not len(test.labels):
        return None
    return 100.0 * float(np.unique(test.labels, return_counts=True)[1].max()) / len(test.labels)
