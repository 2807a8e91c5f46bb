"""A model's feature spaces: z, what the method makes of it (VJE: the posterior mean), and the EMA encoder's z.

Of features that were computed before, or of images as they come.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from vje.evaluation.evaluate import in_chunks
from vje.evaluation.features import Features
from vje.methods.method import Method


@torch.no_grad()
def space_names(model: Method) -> list[str]:
    """The spaces that a model has, z first."""
    one = next(model.parameters()).new_zeros(1, model.encoder.dim)
    return ["z", *model.spaces(one), *(["target"] if model.target_encoder is not None else [])]


def stored_spaces(model: Method, features: Features, names: Sequence[str]) -> dict[str, Tensor]:
    """Some spaces of a data set, each ``[N, D]`` on the model's device."""
    device = next(model.parameters()).device
    others = in_chunks(model, model.spaces, features.z) if set(names) - {"z", "target"} else {}
    known = {"z": features.z, "target": features.target, **others}
    return {name: x.to(device) for name in names if (x := known[name]) is not None}


@torch.no_grad()
def encoded_spaces(model: Method, images: Tensor, names: Sequence[str], autocast: bool = False) -> dict[str, Tensor]:
    """Some spaces of images ``[B, C, H, W]`` in [0, 1] that have their final size; no encoder runs in vain."""
    assert model.preprocessing is not None
    x = model.preprocessing.normalize(images).contiguous(memory_format=torch.channels_last)
    found: dict[str, Tensor] = {}
    with torch.autocast(x.device.type, torch.bfloat16, enabled=autocast):
        if set(names) != {"target"}:
            found["z"] = model.encoder(x).float()
        if "target" in names and model.target_encoder is not None:
            found["target"] = model.target_encoder(x).float()
    if set(names) - {"z", "target"}:
        found |= model.spaces(found["z"])
    return {name: found[name] for name in names}
