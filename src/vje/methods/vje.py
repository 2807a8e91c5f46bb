"""Variational Joint Embedding (Oji and Fieguth, TMLR 2026)."""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, get_args

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cosine_similarity

from vje.likelihood import at_least_float32, directional_nll, radial_nll, standard_nll
from vje.methods.method import BatchNormViews, Method, Quantity, StepOutput, step_output, two_view_noise, two_views
from vje.networks.encoders import Encoder
from vje.networks.inference import InferenceNetwork
from vje.networks.target import moving_average
from vje.posterior import DiagonalGaussian
from vje.preprocessing import Preprocessing
from vje.random import Draws

Term = Literal["directional", "radial", "kl"]
Likelihood = Literal["factorized", "standard"]
Target = Literal["stop-gradient", "ema"]
TargetBatchNorm = Literal["batch", "running"]
OOD_SCORES = (
    *("nll", "nll_directional", "nll_radial", "nll_centered", "neg_elbo"),
    *("variance_trace", "neg_kl", "neg_anisotropy"),
)
"""Those of the scores of which larger means more out-of-distribution."""


class VJE(Method):
    """Encoder, inference network and target, trained on the symmetric conditional ELBO (Eq. symmetric-elbo).

    Args:
        encoder: an :class:`~vje.networks.encoders.Encoder`, or a name for
            :func:`~vje.networks.encoders.build_encoder`.
        nu: degrees of freedom of the Student-t likelihoods; ``math.inf`` is Gaussian.
        beta: weight of the KL term.
        samples: Monte-Carlo samples K a view; 0 scores the posterior mean instead.
        isotropic: one variance shared by all features.
        likelihood: "factorized" into direction and norm (the method), or "standard" Student-t on z.
        terms: which loss terms are on; for ablations. "directional" and "radial" mean nothing to the standard
            likelihood, which is there if either is.
        center_variance: unit geometric mean of the variance inside the directional term.
        target: "stop-gradient" of the same encoder, or an "ema" copy of it.
        target_momentum: EMA momentum at the start; it rises to 1 on a cosine.
        batch_norm: "joint" statistics (one pass over both views) or "separate" ones (a pass each).
        target_batch_norm: the EMA encoder normalises with the statistics of the "batch", or with "running" ones
            averaged from the online encoder.
        ratio: bottleneck width of the inference network, as a fraction of D.
        preprocessing: how pixels become encoder input; needed to score uint8 images and files.

    >>> _ = torch.manual_seed(0)
    >>> model = VJE("resnet8", nu=1.0, target="ema")
    >>> output = model([torch.randn(4, 3, 8, 8), torch.randn(4, 3, 8, 8)])
    >>> output.loss.backward()
    >>> sorted(output.parts)[:4]
    ['anisotropy', 'cosine_mean_z', 'kl', 'loss']
    """

    quantities: ClassVar[Mapping[str, Quantity]] = {
        "variance": Quantity("posterior variance", "mean over features; the prior's is 1", "variance"),
        "kl": Quantity("KL (nats)", "information over the prior"),
        "nll": Quantity("NLL", "of z at s = mean; small is typical"),
        "nll_directional": Quantity("NLL, directional", "the part of z's direction"),
        "nll_radial": Quantity("NLL, radial", "the part of z's norm"),
        "nll_standard": Quantity("NLL, standard", "of z as it is, not of its direction and norm"),
        "anisotropy": Quantity("anisotropy of the variance", "spread over features; 0: all alike"),
        "cosine_mean_z": Quantity("cosine of mean and z", "often negative: see docs/method.md"),
    }

    def __init__(
        self,
        encoder: Encoder | str = "resnet18",
        *,
        nu: float = 1.0,
        beta: float = 1.0,
        samples: int = 1,
        isotropic: bool = False,
        likelihood: Likelihood = "factorized",
        terms: Iterable[Term] = get_args(Term),
        center_variance: bool = False,
        target: Target = "stop-gradient",
        target_momentum: float = 0.996,
        batch_norm: BatchNormViews = "joint",
        target_batch_norm: TargetBatchNorm = "batch",
        ratio: float = 0.25,
        preprocessing: Preprocessing | None = None,
    ) -> None:
        super().__init__(encoder, preprocessing)
        terms = tuple(terms)
        choices = {"likelihood": likelihood, "target": target, "target_batch_norm": target_batch_norm}
        _check(terms, samples, nu, beta, **choices)
        self.inference = InferenceNetwork(self.encoder.dim, ratio, isotropic)
        self.target = copy.deepcopy(self.encoder).requires_grad_(False) if target == "ema" else None
        self.nu, self.beta, self.samples, self.terms = nu, beta, samples, terms
        self.isotropic, self.likelihood, self.center_variance = isotropic, likelihood, center_variance
        self.batch_norm, self.target_batch_norm = batch_norm, target_batch_norm
        self.ratio, self.target_momentum = ratio, target_momentum
        self.train()  # a target with running statistics is in evaluation mode from the first step

    # Training

    def forward(self, views: Sequence[Tensor], draws: Draws | None = None, labels: Tensor | None = None) -> StepOutput:
        r"""Negative ELBO of a pair of views, averaged over the batch (Eq. symmetric-elbo).

        .. math:: \frac12 \sum_{(i,j) \in \{(1,2), (2,1)\}}
            E_{s \sim q(s|z_i)} \bigl[-\log p(z_j | s)\bigr] + \beta\, \mathrm{KL}\bigl(q(s|z_i) \,|\, N(0, I)\bigr)

        Args:
            views: two batches of the same images, differently augmented, each ``[B, C, H, W]``.
            draws: source of the posterior noise; torch's global generator if absent.
            labels: not used.
        """
        two_views(self, views)
        with torch.no_grad():  # first, while no activations are kept: less memory in all
            ema = None if self.target is None else at_least_float32(self.encode(self.target, views))
        z = at_least_float32(self.encode(self.encoder, views))  # [2B, D], view 1 first
        target = (z.detach() if ema is None else ema).roll(len(views[0]), 0)  # the other view's, held fixed
        with torch.autocast(z.device.type, enabled=False):  # log-densities in half precision are wrong
            posterior = self.inference(z)
            sample = posterior.mean  # [2B, D] at K = 0, else [K, 2B, D]
            if self.samples > 0:
                sample = posterior.sample(two_view_noise(posterior.mean, draws, self.samples))
            parts = self._nll(target, sample, posterior.variance) | {"kl": posterior.kl()}
            loss = torch.stack([weight * parts[name].mean() for name, weight in self._weights().items()]).sum()
            with torch.no_grad():
                parts |= {
                    "variance": posterior.mean_variance(),
                    "anisotropy": posterior.anisotropy(),
                    "norm_z": torch.linalg.vector_norm(z, dim=-1),
                    "norm_mean": torch.linalg.vector_norm(posterior.mean, dim=-1),
                    "cosine_mean_z": cosine_similarity(posterior.mean, z, dim=-1),
                }
        return step_output(loss, z[: len(views[0])], **parts)

    def after_step(self, momentum: float | Tensor) -> None:
        """Move the EMA target towards the encoder."""
        if self.target is not None:
            moving_average(self.target, self.encoder, momentum, buffers=self.target_batch_norm == "running")

    def leaves_unused(self) -> bool:
        """An ablation may leave a head without gradients."""
        return set(self.terms) != set(get_args(Term)) or self.samples == 0

    def train(self, mode: bool = True) -> Self:
        """Training mode; an EMA target that normalises with running statistics stays in evaluation mode."""
        super().train(mode)
        if self.target is not None and self.target_batch_norm == "running":
            self.target.eval()
        return self

    def _nll(self, z: Tensor, s: Tensor, variance: Tensor) -> dict[str, Tensor]:
        """The terms of the likelihood."""
        if self.likelihood == "standard":
            with torch.no_grad():  # reported beside it, to compare the two likelihoods in the same terms
                factors = self._factors(z, s, variance)
            return {"nll_standard": standard_nll(z, s, variance, self.nu), **factors}
        return self._factors(z, s, variance)

    def _factors(self, z: Tensor, s: Tensor, variance: Tensor) -> dict[str, Tensor]:
        """Direction and norm (Eq. factorized-likelihood)."""
        return {
            "nll_directional": directional_nll(z, s, variance, self.nu, self.center_variance),
            "nll_radial": radial_nll(z, s, self.nu),
        }

    def _weights(self) -> dict[str, float]:
        """Weight of each loss term that is on."""
        weights = {"kl": self.beta} if "kl" in self.terms else {}
        if self.likelihood == "standard":
            return weights | ({"nll_standard": 1.0} if {"directional", "radial"} & set(self.terms) else {})
        return weights | {f"nll_{term}": 1.0 for term in ("directional", "radial") if term in self.terms}

    # Inference

    def posterior(self, images: Tensor | NDArray[Any]) -> DiagonalGaussian:
        """Posterior of each image; ``images`` as for :meth:`Method.embed`."""
        posterior: DiagonalGaussian = self.inference(self.embed(images))
        return posterior

    def nll(self, z: Tensor, s: Tensor, variance: Tensor) -> Tensor:
        """NLL of embeddings under this model's likelihood, up to a constant: that of direction and norm together.

        Args:
            z: embeddings, ``[..., D]``.
            s: latent samples, ``[..., D]``.
            variance: of the posteriors that these are from, ``[..., D]``.
        """
        return _joint(self._nll(z, s, variance))

    @torch.no_grad()
    def score(self, images: Tensor | NDArray[Any]) -> dict[str, Tensor]:
        """How well the model accounts for each image, by the likelihood of its own embedding at s = mean.

        Call ``model.eval()`` first (a loaded model is in evaluation mode already).

        Args:
            images: as for :meth:`Method.embed`.

        Returns:
            For each image, shape ``[B]``: ``nll`` (larger means less typical), ``nll_directional``, ``nll_radial``,
            ``nll_centered`` (with log-variance centring: how the variance is spread over features counts, how much
            there is does not), ``neg_elbo`` (NLL plus beta KL), ``kl``, ``variance`` (mean over features),
            ``anisotropy`` (its coefficient of variation over features), ``cosine_mean_z``; and, so that larger means
            less typical, ``variance_trace`` (the sum of the variances), ``neg_kl`` and ``neg_anisotropy``.
        """
        self._check_precision()
        return self.score_embeddings(self.embed(images))

    @torch.no_grad()
    def score_embeddings(self, z: Tensor) -> dict[str, Tensor]:
        """:meth:`score` for embeddings that were computed before, shape ``[B, D]``."""
        posterior: DiagonalGaussian = self.inference(z)
        found = self._described(z, posterior)
        centered = directional_nll(z, posterior.mean, posterior.variance, self.nu, center_variance=True)
        return found | {
            "nll_centered": centered + found["nll_radial"],
            "neg_elbo": found["nll"] + self.beta * found["kl"],
            "variance_trace": found["variance"] * z.shape[-1],
            "neg_kl": -found["kl"],
            "neg_anisotropy": -found["anisotropy"],
        }

    def _described(self, z: Tensor, posterior: DiagonalGaussian) -> dict[str, Tensor]:
        parts = self._nll(z, posterior.mean, posterior.variance)
        return {
            "nll": _joint(parts),
            "nll_directional": parts["nll_directional"],
            "nll_radial": parts["nll_radial"],
            "kl": posterior.kl(),
            "variance": posterior.mean_variance(),
            "anisotropy": posterior.anisotropy(),
            "cosine_mean_z": cosine_similarity(posterior.mean, z, dim=-1),
        }

    def spaces(self, z: Tensor) -> dict[str, Tensor]:
        """The posterior mean."""
        return {"mean": self.inference(z).mean}

    def statistics(self, z: Tensor) -> dict[str, Tensor]:
        """The posterior's, as in :meth:`score`."""
        return self._described(z, self.inference(z))

    def ood_scores(self, z: Tensor) -> dict[str, Tensor]:
        """Scores of embeddings under their own posteriors (Eq. csl-score and what is beside it): :data:`OOD_SCORES`."""
        found = self.score_embeddings(z)
        return {name: found[name] for name in OOD_SCORES}

    @torch.no_grad()
    def view_scores(self, z: Tensor) -> dict[str, Tensor]:
        """``neg_elbo`` as in training (Eq. symmetric-elbo): each view's posterior is to account for the other views."""
        posterior: DiagonalGaussian = self.inference(z)
        others = (z.roll(shift, 0) for shift in range(1, len(z)))
        nlls = (self.nll(other, posterior.mean, posterior.variance) for other in others)
        nll = sum(nlls, torch.zeros_like(z[..., 0])) / (len(z) - 1)
        return {"neg_elbo": (nll + self.beta * posterior.kl()).mean(0)}

    # Saving

    def hyperparameters(self) -> dict[str, Any]:
        """The constructor's keyword arguments, as JSON has them."""
        return super().hyperparameters() | {"target": "stop-gradient" if self.target is None else "ema"}


def _joint(parts: Mapping[str, Tensor]) -> Tensor:
    """NLL of the whole embedding: the standard one if that is the likelihood, else the sum of the factors'."""
    return parts["nll_standard"] if "nll_standard" in parts else parts["nll_directional"] + parts["nll_radial"]


def _check(terms: tuple[str, ...], samples: int, nu: float, beta: float, **choices: str) -> None:
    allowed = {
        "likelihood": get_args(Likelihood),
        "target": get_args(Target),
        "target_batch_norm": get_args(TargetBatchNorm),
    }
    for name, value in choices.items():
        if value not in allowed[name]:
            raise ValueError(f"{name} must be one of {', '.join(allowed[name])}, got {value!r}")
    if not terms or set(terms) - set(get_args(Term)):
        raise ValueError(f"terms must be some of {', '.join(get_args(Term))}, got {terms}")
    if not isinstance(samples, int) or samples < 0:
        raise ValueError(f"samples (K) must be a whole number, 0 or more, got {samples}")
    if not 0 <= beta < math.inf:
        raise ValueError(f"beta must be 0 or more, and finite, got {beta}")
    if not nu > 0:
        raise ValueError(f"nu must be positive (math.inf is the Gaussian limit), got {nu}")
