"""Variational Joint Embedding (Oji and Fieguth, TMLR 2026)."""

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from vje.likelihood import at_least_float32, directional_nll, radial_nll, standard_nll
from vje.methods.method import Method, StepOutput
from vje.networks.encoders import Encoder, build_encoder
from vje.networks.inference import InferenceNetwork
from vje.networks.target import moving_average
from vje.posterior import DiagonalGaussian
from vje.preprocessing import Preprocessing
from vje.random import Draws, Stream

Term = Literal["directional", "radial", "kl"]
Likelihood = Literal["factorized", "standard"]
Target = Literal["stop-gradient", "ema"]
BatchNormViews = Literal["joint", "separate"]
TargetBatchNorm = Literal["batch", "running"]


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
        batch_norm: BatchNormViews = "joint",
        target_batch_norm: TargetBatchNorm = "batch",
        ratio: float = 0.25,
        preprocessing: Preprocessing | None = None,
    ) -> None:
        super().__init__()
        terms = tuple(terms)
        choices = {"likelihood": likelihood, "target": target, "batch_norm": batch_norm}
        _check(terms, samples, nu, **choices, target_batch_norm=target_batch_norm)
        self.encoder = build_encoder(encoder) if isinstance(encoder, str) else encoder
        self.inference = InferenceNetwork(self.encoder.dim, ratio, isotropic)
        self.target = copy.deepcopy(self.encoder).requires_grad_(False) if target == "ema" else None
        self.nu, self.beta, self.samples, self.terms = nu, beta, samples, terms
        self.isotropic, self.likelihood, self.center_variance = isotropic, likelihood, center_variance
        self.batch_norm, self.target_batch_norm = batch_norm, target_batch_norm
        self.ratio, self.preprocessing = ratio, preprocessing
        self.train()  # a target with running statistics is in evaluation mode from the first step

    @property
    def target_encoder(self) -> nn.Module | None:
        """The EMA encoder, if the target is one."""
        return self.target

    # Training

    def forward(self, views: Sequence[Tensor], draws: Draws | None = None) -> StepOutput:
        """Negative ELBO of a pair of views.

        Args:
            views: two batches of the same images, differently augmented, each ``[B, C, H, W]``.
            draws: source of the posterior noise; torch's global generator if absent.
        """
        if len(views) != 2:
            raise ValueError(f"VJE compares two views of each image, got {len(views)}")
        z = self._encode(self.encoder, views)  # [2B, D], view 1 first
        observed = self._observations(z, views)
        with torch.autocast(z.device.type, enabled=False):  # log-densities in half precision are wrong
            posterior = self.inference(z)
            noise = self._noise(posterior.mean, draws)
            sample = posterior.mean if noise is None else posterior.sample(noise)  # [K, 2B, D], or [2B, D] at K = 0
            parts = self._nll(observed, sample, posterior.variance)
            parts["kl"] = posterior.kl()
            loss = torch.stack([weight * parts[name].mean() for name, weight in self._weights().items()]).sum()
        return StepOutput(loss, self._report(loss, parts, z, posterior), z[: len(views[0])].detach())

    def after_step(self, momentum: float | Tensor) -> None:
        """Move the EMA target towards the encoder."""
        if self.target is not None:
            moving_average(self.target, self.encoder, momentum, buffers=self.target_batch_norm == "running")

    def train(self, mode: bool = True) -> "VJE":
        """Training mode; an EMA target that normalises with running statistics stays in evaluation mode."""
        super().train(mode)
        if self.target is not None and self.target_batch_norm == "running":
            self.target.eval()
        return self

    def _encode(self, encoder: nn.Module, views: Sequence[Tensor]) -> Tensor:
        """Embeddings of all views, one after the other, in float32 or better."""
        if self.batch_norm == "joint":
            views = [torch.cat(list(views))]
        return at_least_float32(torch.cat([encoder(view) for view in views]))

    def _observations(self, z: Tensor, views: Sequence[Tensor]) -> Tensor:
        """The other view's embedding for each row of z, as a fixed observation."""
        if self.target is None:
            fixed = z.detach()
        else:
            with torch.no_grad():
                fixed = self._encode(self.target, views)
        return fixed.roll(len(views[0]), 0)

    def _noise(self, mean: Tensor, draws: Draws | None) -> Tensor | None:
        """Standard normal noise ``[K, 2B, D]``; none at K = 0."""
        if self.samples == 0:
            return None
        shape = (self.samples, *mean.shape)
        if draws is None:
            return torch.randn(shape, device=mean.device, dtype=mean.dtype)
        batch = len(mean) // 2
        flat = draws.normal(Stream.POSTERIOR, self.samples * 2 * mean.shape[1])  # [B, K * 2 * D]
        return flat.view(batch, self.samples, 2, -1).permute(1, 2, 0, 3).reshape(shape)

    def _nll(self, observed: Tensor, sample: Tensor, variance: Tensor) -> dict[str, Tensor]:
        if self.likelihood == "standard":
            return {"nll_standard": standard_nll(observed, sample, variance, self.nu)}
        return {
            "nll_directional": directional_nll(observed, sample, variance, self.nu, self.center_variance),
            "nll_radial": radial_nll(observed, sample, self.nu),
        }

    def _weights(self) -> dict[str, float]:
        """Weight of each loss term that is on."""
        weights = {"kl": self.beta} if "kl" in self.terms else {}
        if self.likelihood == "standard":
            return weights | ({"nll_standard": 1.0} if {"directional", "radial"} & set(self.terms) else {})
        return weights | {f"nll_{term}": 1.0 for term in ("directional", "radial") if term in self.terms}

    def _report(
        self, loss: Tensor, parts: dict[str, Tensor], z: Tensor, posterior: DiagonalGaussian
    ) -> dict[str, Tensor]:
        with torch.no_grad():
            statistics = {
                "loss": loss,
                **parts,
                "variance": posterior.mean_variance(),
                "anisotropy": posterior.anisotropy(),
                "norm_z": torch.linalg.vector_norm(z, dim=-1),
                "norm_mean": torch.linalg.vector_norm(posterior.mean, dim=-1),
                "cosine_mean_z": cosine_similarity(posterior.mean, z, dim=-1),
            }
            return {name: value.detach().mean() for name, value in statistics.items()}

    # Inference

    def embed(self, images: Tensor) -> Tensor:
        """Embeddings z of images, float32, shape ``[B, D]``.

        Args:
            images: float ``[B, C, H, W]`` that went through :attr:`preprocessing`, or raw uint8
                ``[B, C, H, W]``, which is sent through it here.
        """
        return at_least_float32(self.encoder(self._prepared(images)))

    def posterior(self, images: Tensor) -> DiagonalGaussian:
        """Posterior of each image; ``images`` as for :meth:`embed`."""
        posterior: DiagonalGaussian = self.inference(self.embed(images))
        return posterior

    @torch.no_grad()
    def score(self, images: Tensor) -> dict[str, Tensor]:
        """How well the model accounts for each image, by the likelihood of its own embedding at s = mean.

        Call ``model.eval()`` first (a loaded model is in evaluation mode already).

        Args:
            images: as for :meth:`embed`.

        Returns:
            For each image, shape ``[B]``: ``nll`` (larger means less typical), ``nll_directional``, ``nll_radial``,
            ``kl``, ``variance`` (mean over features), ``anisotropy`` (its coefficient of variation over features)
            and ``cosine_mean_z``.
        """
        return self.score_embeddings(self.embed(images))

    @torch.no_grad()
    def score_embeddings(self, z: Tensor) -> dict[str, Tensor]:
        """:meth:`score` for embeddings that were computed before, shape ``[B, D]``."""
        posterior: DiagonalGaussian = self.inference(z)
        directional = directional_nll(z, posterior.mean, posterior.variance, self.nu, self.center_variance)
        radial = radial_nll(z, posterior.mean, self.nu)
        joint = directional + radial
        if self.likelihood == "standard":
            joint = standard_nll(z, posterior.mean, posterior.variance, self.nu)
        return {
            "nll": joint,
            "nll_directional": directional,
            "nll_radial": radial,
            "kl": posterior.kl(),
            "variance": posterior.mean_variance(),
            "anisotropy": posterior.anisotropy(),
            "cosine_mean_z": cosine_similarity(posterior.mean, z, dim=-1),
        }

    def _prepared(self, images: Tensor) -> Tensor:
        if images.dtype != torch.uint8:
            return images
        if self.preprocessing is None:
            raise ValueError(
                "uint8 images need the model's preprocessing, and this model has none: pass preprocessing=... to VJE, "
                "or give float images that are already normalised"
            )
        return self.preprocessing.normalize(self.preprocessing.fit(images))

    # Saving

    def hyperparameters(self) -> dict[str, Any]:
        """The constructor's arguments, apart from the encoder and the preprocessing."""
        return {
            "nu": self.nu,
            "beta": self.beta,
            "samples": self.samples,
            "isotropic": self.isotropic,
            "likelihood": self.likelihood,
            "terms": list(self.terms),
            "center_variance": self.center_variance,
            "target": "stop-gradient" if self.target is None else "ema",
            "batch_norm": self.batch_norm,
            "target_batch_norm": self.target_batch_norm,
            "ratio": self.ratio,
        }

    def save(self, path: str | Path) -> Path:
        """Write ``model.safetensors`` and ``model.json``, which together are all that :func:`vje.load` needs.

        Args:
            path: a folder, or the ``.safetensors`` file to write (its description goes beside it as ``.json``).

        Returns:
            The weights file.
        """
        from vje.models import save_model

        return save_model(self, path)


def _check(terms: tuple[str, ...], samples: int, nu: float, **choices: str) -> None:
    allowed = {
        "likelihood": get_args(Likelihood),
        "target": get_args(Target),
        "batch_norm": get_args(BatchNormViews),
        "target_batch_norm": get_args(TargetBatchNorm),
    }
    for name, value in choices.items():
        if value not in allowed[name]:
            raise ValueError(f"{name} must be one of {', '.join(allowed[name])}, got {value!r}")
    unknown = set(terms) - set(get_args(Term))
    if unknown or not terms:
        raise ValueError(f"terms must be some of {', '.join(get_args(Term))}, got {terms}")
    if samples < 0:
        raise ValueError(f"samples (K) must be 0 or more, got {samples}")
    if not nu > 0:
        raise ValueError(f"nu must be positive (math.inf is the Gaussian limit), got {nu}")
