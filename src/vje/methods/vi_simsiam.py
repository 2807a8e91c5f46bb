r"""VI-SimSiam (Nakamura, Okada and Taniguchi, ICCV 2023).

The paper is "Representation uncertainty in self-supervised learning as variational inference". The Power-Spherical
distribution is that of De Cao and Aziz ("The power spherical distribution", 2020). Their package ``power_spherical``
was considered: two formulas are less than a dependency, and its log-density has no floor at the antipode.

Taken here where the paper leaves it open:

- What the concentration kappa is predicted from: the projection, as the mean direction is and by a head of the same
  form, or the embedding, by a linear layer or one more, whose gradient goes no further unless ``kappa_gradient`` says
  so. Where it went on into the encoder from the first step at the recipe's rate, the embeddings' effective rank fell to
  15 and k-NN accuracy stayed behind; with a warm-up and half that rate k-NN gains a point, and OOD detection by kappa
  loses four on far sets (CIFAR-10, 200 epochs, one seed). The recipes take the embedding, a linear layer and no
  gradient, whose OOD scores are like VJE's paper's (``results/README.md``); the default stays the projection, which is
  what files from before there was a choice mean.
- Kappa is in units of D - 1: a prediction that is right up to a cosine c wants up to (D - 1) c / (1 - c), thousands at
  D = 2048. What makes the layer's output positive is a softplus; from the embedding, whose length makes SGD's first
  steps long, :func:`squareplus`, whose slope lets kappa come back (with a softplus it stayed at its floor: digits, six
  epochs, one seed).
- The loss is divided by the batch's mean kappa, as a constant. The gradient of a direction is in proportion to kappa:
  a thousand times SimSiam's in the end, and next to none early on, when a small kappa keeps directions from being
  learnt and they it from rising (on the digits, training stayed there). Divided, images and terms keep their weights
  relative to each other, and SimSiam's learning rates serve; undivided, and with a plain softplus, k-NN is six points
  lower (CIFAR-10, 200 epochs, one seed). What is divided is negative, by the logarithm of the sphere's area (-4900 at
  D = 2048), so as kappa grows the loss may rise while the ELBO does too: ``loss_nats`` is the one to follow.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize, softplus

from vje.likelihood import at_least_float32
from vje.methods.method import BatchNormViews, Method, Quantity, StepOutput, step_output, two_views
from vje.networks.encoders import Encoder
from vje.networks.gather import gathered
from vje.networks.heads import mlp
from vje.preprocessing import Preprocessing
from vje.random import Draws

KappaFrom = Literal["projection", "embedding"]

KAPPA_FLOOR = 0.05
"""Smallest concentration, in units of D - 1; the mean cosine is then 0.05. Without it kappa sinks to next to nothing
while nothing is predicted yet (digits, six epochs, one seed: a mean cosine of 0.27 at the end, and 0.54 with it)."""


def power_spherical_log_prob(x: Tensor, mean: Tensor, kappa: Tensor) -> Tensor:
    r"""Log-density of a direction under the Power-Spherical distribution on the unit sphere in D dimensions.

    .. math:: \log p(x) = \log C(\kappa) + \kappa \log(1 + x \cdot \mu), \quad
        \log C(\kappa) = \log\Gamma(\alpha + \beta) - \log\Gamma(\alpha) - (\alpha + \beta) \log 2 - \beta \log \pi

    with alpha = (D - 1)/2 + kappa and beta = (D - 1)/2 (De Cao and Aziz). At the antipode, where the density is zero,
    it is held at that of the nearest representable angle.

    Args:
        x: where, shape ``[..., D]``; only its direction matters.
        mean: mean direction mu, shape ``[..., D]``; likewise.
        kappa: concentration, positive, shape ``[...]``.

    Returns:
        Shape ``[...]``.

    >>> north, south = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.0, 0.0, -1.0])
    >>> density = power_spherical_log_prob(north, north, torch.tensor(1.0)).exp()
    >>> round(density.item() * 4 * math.pi, 4)  # on the globe at kappa = 1, (1 + cosine) times that of uniform
    2.0
    >>> power_spherical_log_prob(south, north, torch.tensor(1.0)).isfinite().item()
    True
    """
    x, mean, kappa = at_least_float32(x), at_least_float32(mean), at_least_float32(kappa)
    # 1 + cosine as half the square of a sum: it cannot be negative, and keeps its digits at the antipode
    one_plus_cosine = (normalize(x, dim=-1) + normalize(mean, dim=-1)).square().sum(-1) / 2
    floor = torch.finfo(one_plus_cosine.dtype).eps ** 2
    return _log_normalizer(kappa, x.shape[-1]) + kappa * one_plus_cosine.clamp_min(floor).log()


def power_spherical_entropy(kappa: Tensor, dim: int) -> Tensor:
    r"""Differential entropy of the Power-Spherical distribution (De Cao and Aziz).

    .. math:: H = -\log C(\kappa) - \kappa\,(\log 2 + \psi(\alpha) - \psi(\alpha + \beta))

    Args:
        kappa: concentration, positive, shape ``[...]``.
        dim: D, of the space that the sphere is in.

    >>> power_spherical_entropy(torch.tensor(1e-6), 3).exp() / math.pi  # the area of the globe is 4 pi
    tensor(4.0000)
    """
    kappa = at_least_float32(kappa)
    alpha, beta = (dim - 1) / 2 + kappa, (dim - 1) / 2
    expected = math.log(2) + torch.digamma(alpha) - torch.digamma(alpha + beta)  # of log(1 + cosine)
    return -_log_normalizer(kappa, dim) - kappa * expected


def power_spherical_kl_uniform(kappa: Tensor, dim: int) -> Tensor:
    """KL divergence to the uniform distribution on the sphere: the log of its area less the entropy.

    Args:
        kappa: concentration, positive, shape ``[...]``.
        dim: D, of the space that the sphere is in.

    >>> power_spherical_kl_uniform(torch.tensor([1.0, 10.0, 100.0]), 3)
    tensor([0.1931, 1.4888, 3.6250])
    """
    log_area = math.log(2) + dim / 2 * math.log(math.pi) - math.lgamma(dim / 2)
    return log_area - power_spherical_entropy(kappa, dim)


def _log_normalizer(kappa: Tensor, dim: int) -> Tensor:
    alpha, beta = (dim - 1) / 2 + kappa, (dim - 1) / 2
    log_ratio = torch.lgamma(alpha + beta) - torch.lgamma(alpha)
    return log_ratio - (alpha + beta) * math.log(2) - beta * math.log(math.pi)


def squareplus(x: Tensor) -> Tensor:
    r"""A positive number of any: :math:`(x + \sqrt{x^2 + 4}) / 2`, whose slope falls with a square, not exponentially.

    >>> squareplus(torch.tensor([-100.0, 0.0, 100.0]))
    tensor([9.9990e-03, 1.0000e+00, 1.0001e+02])
    """
    negative = x < 0
    size = torch.where(negative, -x, x)
    large = (size + (size.square() + 4).sqrt()) / 2
    return torch.where(negative, 1 / large, large)  # the formula would subtract large numbers


def scaled_gradient(x: Tensor, scale: float) -> Tensor:
    """The same values, with ``scale`` times the gradient.

    >>> x = torch.tensor(3.0, requires_grad=True)
    >>> y = scaled_gradient(x, 0.1)
    >>> y.item(), torch.autograd.grad(y.square(), x)[0].item()
    (3.0, 0.6000000238418579)
    """
    constant = x.detach()
    return constant + scale * (x - constant) if scale else constant


class VISimSiam(Method):
    """VI-SimSiam: SimSiam's predictor gives a distribution of directions, and the other view's is observed.

    Args:
        encoder: to train.
        hidden: Width of the projector, and of its output.
        layers: Linear layers of the projector (2 on CIFAR, 3 on ImageNet).
        bottleneck: Width of the hidden layer of the predictor, and of a head like it.
        kappa_from: The concentration is predicted from the "projection" by a head like the predictor, or from the
            "embedding" by a linear layer.
        kappa_hidden: Width of a hidden layer between the embedding and the concentration; 0 for none.
        kappa_gradient: Share of the concentration's gradient that goes on into the embedding, from 0 to 1, where it is
            predicted from that.
        kl_weight: Weight of the KL divergence to the uniform distribution.
        fixed_predictor_rate: The predictor's learning rate does not decay.
        batch_norm: Batch-norm statistics over both views together, or each on its own.
        preprocessing: how pixels become encoder input.
    """

    across_images: ClassVar[bool] = True  # the batch's mean concentration is what the loss is divided by
    quantities: ClassVar[Mapping[str, Quantity]] = {
        "loss": Quantity("loss in units of kappa (may rise)", "over the mean kappa: nearer to 0 as it grows"),
        "loss_nats": Quantity("loss in nats", "negative ELBO, KL as weighted: falls in training", "-ELBO"),
        "kappa": Quantity("concentration kappa", "larger: surer of the direction", "kappa"),
        "ps_nll": Quantity("Power-Spherical NLL", "of the direction; small is typical"),
        "kl": Quantity("KL (nats)", "information over no prediction"),
        "cosine": Quantity("cosine to the prediction", "1: the direction was predicted"),
    }

    def __init__(
        self,
        encoder: Encoder | str,
        *,
        hidden: int = 2048,
        layers: int = 3,
        bottleneck: int = 512,
        kappa_from: KappaFrom = "projection",
        kappa_hidden: int = 0,
        kappa_gradient: float = 0.0,
        kl_weight: float = 1.0,
        fixed_predictor_rate: bool = True,
        batch_norm: BatchNormViews = "separate",
        preprocessing: Preprocessing | None = None,
    ) -> None:
        super().__init__(encoder, preprocessing)
        if hidden < 2:
            raise ValueError(f"hidden must be 2 or more, as directions need two dimensions, got {hidden}")
        if not kl_weight >= 0:
            raise ValueError(f"kl_weight must be 0 or more, got {kl_weight}; the default is 1")
        if kappa_from not in get_args(KappaFrom):
            raise ValueError(f"kappa_from must be one of {', '.join(get_args(KappaFrom))}, got {kappa_from!r}")
        if kappa_hidden < 0:
            raise ValueError(f"kappa_hidden must be 0 or more, got {kappa_hidden}")
        if kappa_hidden and kappa_from == "projection":
            raise ValueError('kappa_hidden is for kappa_from="embedding"; on the projection it is bottleneck')
        if not 0 <= kappa_gradient <= 1:
            raise ValueError(f"kappa_gradient must be from 0 to 1, got {kappa_gradient}")
        if kappa_gradient and kappa_from == "projection":
            raise ValueError('kappa_gradient is for kappa_from="embedding"; through the projection all of it goes on')
        self.hidden, self.layers, self.bottleneck, self.kl_weight = hidden, layers, bottleneck, kl_weight
        self.kappa_from, self.kappa_hidden, self.kappa_gradient = kappa_from, kappa_hidden, kappa_gradient
        self.fixed_predictor_rate, self.batch_norm = fixed_predictor_rate, batch_norm
        self.projector = mlp([self.encoder.dim, *[hidden] * layers], last_norm="plain")
        self.predictor = mlp([hidden, bottleneck, hidden])
        on_embedding = [self.encoder.dim, kappa_hidden, 1] if kappa_hidden else [self.encoder.dim, 1]
        self.concentration = mlp([hidden, bottleneck, 1] if kappa_from == "projection" else on_embedding)

    def forward(self, views: Sequence[Tensor], draws: Draws | None = None, labels: Tensor | None = None) -> StepOutput:
        """Negative ELBO of a pair of views, in units of the mean concentration."""
        two_views(self, views)
        z = self.encode(self.encoder, views)  # [2B, D]
        projection = self.apply_head(self.projector, z)
        prediction = self.apply_head(self.predictor, projection)
        seen = projection if self.kappa_from == "projection" else scaled_gradient(z, self.kappa_gradient)
        raw = self.apply_head(self.concentration, seen)
        with torch.autocast(z.device.type, enabled=False):
            prediction, kappa = at_least_float32(prediction), self._kappa(raw)
            other = at_least_float32(projection.detach()).roll(len(views[0]), 0)
            nll = -power_spherical_log_prob(other, prediction, kappa)
            kl = power_spherical_kl_uniform(kappa, self.hidden)
            nats = nll + self.kl_weight * kl
            loss = nats.mean() / gathered(kappa).mean()
            cosine = cosine_similarity(prediction, other, dim=1)
        parts = {"loss_nats": nats, "ps_nll": nll, "kl": kl, "kappa": kappa, "cosine": cosine}
        return step_output(loss, z[: len(views[0])], **parts)

    def constant_rate(self) -> Iterable[nn.Parameter]:
        """The predictor's parameters, as SimSiam's authors found best; the concentration's settle with the rest."""
        return self.predictor.parameters() if self.fixed_predictor_rate else ()

    def statistics(self, z: Tensor) -> dict[str, Tensor]:
        """Of each embedding's own direction under what it predicts; the log-density and the KL are in nats."""
        projection, prediction, kappa = self._predicted(z)
        return {
            "kappa": kappa,
            "ps_nll": -power_spherical_log_prob(projection, prediction, kappa),
            "kl": power_spherical_kl_uniform(kappa, self.hidden),
            "cosine": cosine_similarity(prediction, projection, dim=1),
        }

    def ood_scores(self, z: Tensor) -> dict[str, Tensor]:
        """Scores of each embedding's own direction under what it predicts.

        ``ps_nll`` is the Power-Spherical one, ``neg_kappa`` minus the concentration, ``neg_elbo`` minus the ELBO (with
        the KL counted once, whatever weight it had in training) and ``cosine_distance`` that to the mean direction.
        """
        found = self.statistics(z)
        return {
            "ps_nll": found["ps_nll"],
            "neg_kappa": -found["kappa"],
            "neg_elbo": found["ps_nll"] + found["kl"],
            "cosine_distance": 1 - found["cosine"],
        }

    @torch.no_grad()
    def view_scores(self, z: Tensor) -> dict[str, Tensor]:
        """``neg_elbo`` as in training: each view predicts the directions of the other views."""
        projection, prediction, kappa = (x.unflatten(0, z.shape[:2]) for x in self._predicted(z.flatten(0, 1)))
        others = (power_spherical_log_prob(projection.roll(shift, 0), prediction, kappa) for shift in range(1, len(z)))
        nll = -sum(others, torch.zeros_like(kappa)) / (len(z) - 1)
        return {"neg_elbo": (nll + power_spherical_kl_uniform(kappa, self.hidden)).mean(0)}

    def _predicted(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of each embedding, ``[B, D]``: the projection, the mean direction (of any length) and the concentration."""
        projection = self.projector(z)
        raw = self.concentration(projection if self.kappa_from == "projection" else z)
        return projection, self.predictor(projection), self._kappa(raw)

    def _kappa(self, raw: Tensor) -> Tensor:
        positive = softplus if self.kappa_from == "projection" else squareplus
        return (self.hidden - 1) * (positive(at_least_float32(raw).squeeze(-1)) + KAPPA_FLOOR)
