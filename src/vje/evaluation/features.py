"""Embeddings of whole data sets, computed once and kept: by weights and data, in the run's ``cache`` folder.

Only encoder outputs are kept. The posterior is a small function of them, and is computed again when it is wanted.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vje.data.batches import evaluation_batches
from vje.data.sources import ImageSource
from vje.data.views import Views, views
from vje.errors import UserError
from vje.methods.method import Method
from vje.runs import write_atomically

Report = Callable[[int, int], None]
"""Told, now and then, how much is done and how much there is in all."""


@dataclass(frozen=True)
class Features:
    """Embeddings of a data set, on the CPU."""

    z: Tensor  # the encoder's, ``[N, D]``
    target: Tensor | None  # the EMA encoder's, ``[N, D]``, for models that have one
    kept: Tensor  # index in the source of each row (files that cannot be read have none), int64 ``[N]``
    failures: list[tuple[str, str]]  # (name, reason) of each file that could not be read
    labels: Tensor | None  # class of each row, int64 ``[N]``, if known


def compute_features(
    model: Method,
    source: ImageSource,
    batch_size: int = 500,
    workers: int = 0,
    report: Report | None = None,
    target: bool = True,
) -> Features:
    """Embed every image of a source, in float32, with the model as it is (evaluation mode, its device).

    Args:
        model: with its preprocessing.
        source: the images.
        batch_size: images at a time.
        workers: processes that decode files.
        report: told (images done, images in all) after each batch.
        target: embed with the EMA encoder too, if there is one.
    """
    if model.preprocessing is None:
        raise UserError("this model has no preprocessing, so images cannot be prepared for it.")
    device = next(model.parameters()).device
    z, slow, kept, failures = [], [], [], []
    for batch in evaluation_batches(source, model.preprocessing, batch_size, workers):
        failures += [(source.names[index], reason) for index, reason in batch.failures]
        if len(batch.images):
            online, average = embed_batch(model, batch.images.to(device), target=target)
            z.append(online.cpu())
            slow += [] if average is None else [average.cpu()]
            kept.append(batch.indices)
        if report is not None:
            report(sum(map(len, kept)) + len(failures), len(source))
    if not z:
        first = f"; {failures[0][0]}: {failures[0][1]}" if failures else ""
        raise UserError(f"none of the {len(source)} images of {source.name} could be read{first}")
    return _assemble(source, torch.cat(z), torch.cat(slow) if slow else None, torch.cat(kept), failures)


@torch.no_grad()
def embed_batch(
    model: Method, images: Tensor, autocast: bool = False, target: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Embeddings of uint8 images that have their final size, by the encoder and, if wanted, by its EMA."""
    assert model.preprocessing is not None
    x = model.preprocessing.normalize(images).contiguous(memory_format=torch.channels_last)
    with torch.autocast(x.device.type, torch.bfloat16, enabled=autocast):
        slow = model.target_encoder if target else None
        return model.encoder(x).float(), None if slow is None else slow(x).float()


def embed_views(model: Method, images: Tensor, how: Views) -> Tensor:
    """Embeddings ``[V, B, D]`` of the views (:mod:`vje.data.views`) of uint8 images that have their final size."""
    return torch.stack([embed_batch(model, view, target=False)[0] for view in views(images, how)])


def embed_pixels(
    model: Method, images: Tensor, rows: int, autocast: bool = False, target: bool = True
) -> tuple[Tensor, Tensor | None]:
    """:func:`embed_batch` of so many images at a time; the others wait outside the device, which may not hold all."""
    device = next(model.parameters()).device
    chunks = [embed_batch(model, chunk.to(device), autocast, target) for chunk in images.split(rows)]
    slow = [average for _, average in chunks if average is not None]
    return torch.cat([z for z, _ in chunks]), torch.cat(slow) if slow else None


def cached_features(
    model: Method,
    source: ImageSource,
    folder: Path,
    batch_size: int = 500,
    workers: int = 0,
    report: Report | None = None,
    target: bool = True,
) -> Features:
    """:func:`compute_features`, unless ``folder`` has them for these weights and this data already."""
    file = folder / f"features-{weights_fingerprint(model)[:16]}-{source.fingerprint()[:16]}.safetensors"
    found = _read(file, source)
    complete = found is not None and (found.target is not None or not target or model.target_encoder is None)
    if found is not None and complete and not _mended(model, source, found.failures, batch_size, workers):
        return found
    features = compute_features(model, source, batch_size, workers, report, target)
    tensors = {"z": features.z, "kept": features.kept}
    if features.target is not None:
        tensors["target"] = features.target
    with suppress(UserError):  # a folder that cannot be written to
        write_atomically(file, save(tensors, metadata={"failures": json.dumps(features.failures)}))
    return features


def _mended(
    model: Method, source: ImageSource, failures: Sequence[tuple[str, str]], batch_size: int, workers: int
) -> bool:
    """Whether a file that could not be read now can: the drive is back, or a decoder was installed."""
    failed = {name for name, _ in failures}
    places = [place for place, name in enumerate(source.names) if name in failed] if failed else []
    if not places or model.preprocessing is None:
        return False
    batches = evaluation_batches(source.subset(places), model.preprocessing, batch_size, workers)
    return any(len(batch.indices) for batch in batches)


def weights_fingerprint(model: Method) -> str:
    """Hash of everything that decides what the model makes of an image."""
    digest = blake2b(json.dumps(model.preprocessing.as_dict() if model.preprocessing else None).encode())
    for name, x in model.state_dict().items():
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(x.detach().cpu().numpy()).tobytes())
    return digest.hexdigest()


def _read(file: Path, source: ImageSource) -> Features | None:
    try:
        with safe_open(file, framework="pt") as content:
            tensors = {name: content.get_tensor(name) for name in content.keys()}
            noted = (content.metadata() or {})["failures"]
        failures = [(name, reason) for name, reason in json.loads(noted)]
        return _assemble(source, tensors["z"], tensors.get("target"), tensors["kept"], failures)
    except (SafetensorError, OSError, LookupError, ValueError):  # not there, or damaged: it is only a cache
        return None


def _assemble(
    source: ImageSource, z: Tensor, target: Tensor | None, kept: Tensor, failures: list[tuple[str, str]]
) -> Features:
    labels = None if source.labels is None else torch.as_tensor(source.labels)[kept]
    return Features(z, target, kept, failures, labels)
