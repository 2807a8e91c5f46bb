"""Scores that a model itself gives an image; larger means more out-of-distribution, for every one of them.

They need no training features and no labels. Those that do are the detectors of :mod:`vje.ood.detectors`.
"""

import torch
from torch import Tensor

from vje.evaluation.evaluate import in_chunks
from vje.methods.method import Method
from vje.methods.vje import VJE

ROWS = 4096
"""Embeddings scored at a time."""


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
    generator = torch.Generator(next(model.parameters()).device).manual_seed(seed)

    def scores(rows: Tensor) -> dict[str, Tensor]:
        found = model.ood_scores(rows)
        if samples and isinstance(model, VJE):
            found["nll_mc"] = _sampled_nll(model, rows, samples, generator)
        return found

    return {name: x.cpu() for name, x in in_chunks(model, scores, z, ROWS).items()}


def _sampled_nll(model: VJE, z: Tensor, samples: int, generator: torch.Generator) -> Tensor:
    """Mean over K posterior samples of the NLL, one sample at a time so that memory does not grow with K."""
    posterior = model.inference(z)
    total = torch.zeros(len(z), device=z.device)
    for _ in range(samples):
        noise = torch.randn(z.shape, generator=generator, device=z.device)
        total += model.nll(z, posterior.sample(noise), posterior.variance)
    return total / samples
