"""Scores that a VJE model itself gives an image; larger means more out-of-distribution, for every one of them.

They need no training features and no labels. Those that do are the detectors of :mod:`vje.ood.detectors`.
"""

import torch
from torch import Tensor

from vje.likelihood import directional_nll, radial_nll, standard_nll
from vje.methods.vje import VJE

ROWS = 4096
"""Embeddings scored at a time."""


@torch.no_grad()
def posterior_scores(model: VJE, z: Tensor, samples: int = 0, seed: int = 0) -> dict[str, Tensor]:
    """Score embeddings under their own posteriors (Eq. csl-score and the statistics beside it).

    ``nll``, ``nll_directional`` and ``nll_radial`` are taken at s = mean; ``variance_trace`` is the sum of the
    variances; ``neg_kl`` and ``neg_anisotropy`` have their signs turned so that larger is more out-of-distribution.

    Args:
        model: in evaluation mode.
        z: embeddings, ``[N, D]``.
        samples: K > 0 adds ``nll_mc``, the NLL averaged over K posterior samples.
        seed: of the samples.

    Returns:
        Each score, ``[N]``, on the CPU.
    """
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    chunks = [_score_chunk(model, chunk.to(device), samples, generator) for chunk in z.split(ROWS)]
    return {name: torch.cat([chunk[name].cpu() for chunk in chunks]) for name in chunks[0]}


def _score_chunk(model: VJE, z: Tensor, samples: int, generator: torch.Generator) -> dict[str, Tensor]:
    found = model.score_embeddings(z)
    scores = {
        "nll": found["nll"],
        "nll_directional": found["nll_directional"],
        "nll_radial": found["nll_radial"],
        "variance_trace": found["variance"] * z.shape[1],
        "neg_kl": -found["kl"],
        "neg_anisotropy": -found["anisotropy"],
    }
    if samples:
        scores["nll_mc"] = _sampled_nll(model, z, samples, generator)
    return scores


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
