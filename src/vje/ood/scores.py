"""Scores that a model itself gives an image; larger means more out-of-distribution, for every one of them.

They need no training features and no labels. Those that do are the detectors of :mod:`vje.ood.detectors`.
"""

import torch
from torch import Tensor

from vje.likelihood import directional_nll, radial_nll, standard_nll
from vje.methods.method import Method
from vje.methods.vje import VJE

ROWS = 4096
"""Embeddings scored at a time."""


@torch.no_grad()
def model_scores(model: Method, z: Tensor, samples: int = 0, seed: int = 0) -> dict[str, Tensor]:
    """A method's own scores of embeddings (:meth:`Method.ood_scores`); for VJE, those of the posterior.

    Args:
        model: in evaluation mode.
        z: embeddings, ``[N, D]``.
        samples: K > 0 adds ``nll_mc``, VJE's NLL averaged over K posterior samples.
        seed: of the samples.

    Returns:
        Each score, ``[N]``, on the CPU.
    """
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    chunks = []
    for rows in z.split(ROWS):
        chunk = rows.to(device)
        scores = model.ood_scores(chunk)
        if samples and isinstance(model, VJE):
            scores["nll_mc"] = _sampled_nll(model, chunk, samples, generator)
        chunks.append({name: x.cpu() for name, x in scores.items()})
    return {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}


def _sampled_nll(model: VJE, z: Tensor, samples: int, generator: torch.Generator) -> Tensor:
    """Mean over K posterior samples of the NLL, one sample at a time so that memory does not grow with K."""
    posterior = model.inference(z)
    total = torch.zeros(len(z), device=z.device)
    for _ in range(samples):
        noise = torch.randn(z.shape, generator=generator, device=z.device)
        s = posterior.sample(noise)
        if model.likelihood == "standard":
            total += standard_nll(z, s, posterior.variance, model.nu)
        else:
            total += directional_nll(z, s, posterior.variance, model.nu, model.center_variance)
            total += radial_nll(z, s, model.nu)
    return total / samples
