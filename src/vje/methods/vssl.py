r"""VSSL (Yavuz and Yanikoglu, "Variational self-supervised learning", arXiv:2504.04318, 2025).

Taken here where the paper leaves it open:

- The cosine forms. The authors put cosines of means and of variances in place of the Gaussian log-likelihood and KL;
  those of :func:`cosine_terms` are our reading, each between 0 and 2.
- What keeps the means from collapsing. As in BYOL, the student has a predictor that the teacher has not; and means are
  batch-normalised without a learnt scale, so that the Gaussian terms cannot fall by shrinking them.
- What keeps the variance from collapsing. Nothing in the Gaussian objective does: the teacher gets no gradient, and the
  student's best variance is half the teacher's, whatever the residuals. So it falls to a floor, which is a setting.
- The expectation of the Gaussian log-likelihood over the student's samples has a closed form, and this is used.
- Terms are averaged over features, not summed, so that learning rates do not depend on their number.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, softplus

from vje.likelihood import at_least_float32
from vje.methods.method import BatchNormViews, Method, Quantity, StepOutput, step_output, two_view_noise, two_views
from vje.networks.encoders import Encoder
from vje.networks.heads import mlp
from vje.networks.target import moving_average
from vje.posterior import DiagonalGaussian
from vje.preprocessing import Preprocessing
from vje.random import Draws

Objective = Literal["gaussian", "cosine"]
VARIANCE = Quantity("posterior variance", "of the student; its means' own is 1", "variance")


def gaussian_terms(posterior: DiagonalGaussian, prior: DiagonalGaussian) -> tuple[Tensor, Tensor]:
    r"""Expected negative log-likelihood of samples of q under p, and KL(q || p), both per feature.

    .. math::
        -E_{s \sim q} \log p(s) = \tfrac1D \sum \tfrac12 \Bigl(\log 2\pi v_p + \frac{v_q + (\mu_q - \mu_p)^2}{v_p}\Bigr)

        KL = \tfrac1D \sum \tfrac12 \Bigl(\log\frac{v_p}{v_q} + \frac{v_q + (\mu_q - \mu_p)^2}{v_p} - 1\Bigr)

    Args:
        posterior: the student's q, of shape ``[..., D]``.
        prior: the teacher's p, of the same shape.

    Returns:
        Two tensors of shape ``[...]``.

    >>> q = DiagonalGaussian(torch.zeros(2), torch.ones(2))
    >>> gaussian_terms(q, q)  # the entropy of a standard normal variable, and nothing
    (tensor(1.4189), tensor(0.))
    """
    scaled = (posterior.variance + (posterior.mean - prior.mean).square()) / prior.variance
    nll = (2 * torch.pi * prior.variance).log() + scaled
    kl = prior.variance.log() - posterior.variance.log() + scaled - 1
    return nll.mean(-1) / 2, kl.mean(-1) / 2


def cosine_terms(sample: Tensor, posterior: DiagonalGaussian, prior: DiagonalGaussian) -> tuple[Tensor, Tensor]:
    r"""The cosine forms of the same: of a sample s with the prior's mean, and of means and of variances.

    .. math:: 1 - \cos(s, \mu_p), \qquad
        \tfrac12 (1 - \cos(\mu_q, \mu_p)) + \tfrac12 (1 - \cos(v_q, v_p))

    Args:
        sample: of the student's q, shape ``[..., D]``.
        posterior: q.
        prior: the teacher's p.

    Returns:
        Two tensors of shape ``[...]``.

    >>> q = DiagonalGaussian(torch.tensor([3.0, 0.0]), torch.ones(2))
    >>> p = DiagonalGaussian(torch.tensor([0.0, 1.0]), torch.full((2,), 9.0))
    >>> cosine_terms(q.mean, q, p)  # means at right angles, variances parallel
    (tensor(1.), tensor(0.5000))
    """
    of_means, of_variances = (
        cosine_similarity(a, b, dim=-1) for a, b in ((posterior.mean, prior.mean), (posterior.variance, prior.variance))
    )
    return 1 - cosine_similarity(sample, prior.mean, dim=-1), 1 - (of_means + of_variances) / 2


class GaussianHead(nn.Module):
    """A hidden layer, then mean and variance of a diagonal Gaussian.

    Args:
        dim: of the embedding.
        hidden: width of the hidden layer.
        latent: features of the Gaussian.
        floor: smallest variance.
    """

    def __init__(self, dim: int, hidden: int, latent: int, floor: float) -> None:
        super().__init__()
        self.floor = floor
        self.body = mlp([dim, hidden], last_norm="batch").append(nn.ReLU(inplace=True))
        self.mean = mlp([hidden, latent], last_norm="plain")
        self.variance = nn.Linear(hidden, latent)

    def forward(self, z: Tensor) -> Tensor:
        """Mean and variance side by side, shape ``[B, 2 * latent]``."""
        hidden = self.body(z)
        mean, raw = at_least_float32(self.mean(hidden)), at_least_float32(self.variance(hidden))
        return torch.cat([mean, self.floor + softplus(raw)], 1)


class VSSL(Method):
    """VSSL: a moving-average teacher's Gaussian of one view is prior and likelihood for the student's of the other.

    Args:
        encoder: to train.
        objective: Gaussian log-likelihood and KL, or the cosines that the authors put in their place.
        hidden: Width of the hidden layers of the Gaussian heads and the predictor.
        latent: Features of the Gaussians.
        kl_weight: Weight of the KL term.
        predictor: A predictor on the student's mean, as in BYOL.
        variance_floor: Smallest variance, where the variances of means over a batch are 1.
        target_momentum: EMA momentum at the start; it rises to 1 on a cosine.
        batch_norm: Batch-norm statistics over both views together, or each on its own.
        preprocessing: how pixels become encoder input.
    """

    quantities: ClassVar[Mapping[str, Quantity]] = {
        "variance": VARIANCE,
        "posterior_variance": VARIANCE,
        "nll": Quantity("likelihood term", "of the student's samples under the teacher's Gaussian"),
        "kl": Quantity("KL term", "of the student's Gaussian to the teacher's"),
        "cosine": Quantity("cosine to the teacher", "of the student's mean with the teacher's of the other view"),
    }

    def __init__(
        self,
        encoder: Encoder | str,
        *,
        objective: Objective = "cosine",
        hidden: int = 4096,
        latent: int = 256,
        kl_weight: float = 1.0,
        predictor: bool = True,
        variance_floor: float = 0.5,
        target_momentum: float = 0.996,
        batch_norm: BatchNormViews = "separate",
        preprocessing: Preprocessing | None = None,
    ) -> None:
        super().__init__(encoder, preprocessing)
        if objective not in get_args(Objective):
            raise ValueError(f"objective must be one of {', '.join(get_args(Objective))}, got {objective!r}")
        if not kl_weight >= 0:
            raise ValueError(f"kl_weight must be 0 or more, got {kl_weight}; the default is 1")
        if not variance_floor > 0:
            raise ValueError(f"variance_floor must be positive, got {variance_floor}; the default is 0.5")
        self.objective, self.hidden, self.latent, self.kl_weight = objective, hidden, latent, kl_weight
        self.predictor, self.variance_floor = predictor, variance_floor
        self.target_momentum, self.batch_norm = target_momentum, batch_norm
        self.head = GaussianHead(self.encoder.dim, hidden, latent, variance_floor)
        self.target = copy.deepcopy(self.encoder).requires_grad_(False)
        self.target_head = copy.deepcopy(self.head).requires_grad_(False)
        self.predict = mlp([latent, hidden, latent], last_bias=False) if predictor else nn.Identity()

    def forward(self, views: Sequence[Tensor], draws: Draws | None = None, labels: Tensor | None = None) -> StepOutput:
        """Loss of a pair of views."""
        two_views(self, views)
        with torch.no_grad():  # first, while no activations are kept: less memory in all
            target = self.apply_head(self.target_head, self.encode(self.target, views))
            prior = DiagonalGaussian(*target.roll(len(views[0]), 0).chunk(2, 1))  # of the other view
        z = self.encode(self.encoder, views)  # [2B, D]
        mean, variance = self.apply_head(self.head, z).chunk(2, 1)
        posterior = DiagonalGaussian(at_least_float32(self.apply_head(self.predict, mean)), variance)
        with torch.autocast(z.device.type, enabled=False):
            if self.objective == "gaussian":
                nll, kl = gaussian_terms(posterior, prior)
            else:
                sample = posterior.sample(two_view_noise(posterior.mean, draws)[0])
                nll, kl = cosine_terms(sample, posterior, prior)
            loss = (nll + self.kl_weight * kl).mean()
            agreement = cosine_similarity(posterior.mean, prior.mean, dim=1)
        parts = {"nll": nll, "kl": kl, "posterior_variance": variance, "cosine": agreement}
        return step_output(loss, z[: len(views[0])], **parts)

    def after_step(self, momentum: float | Tensor) -> None:
        """Move the teacher towards the student."""
        moving_average(self.target, self.encoder, momentum)
        moving_average(self.target_head, self.head, momentum)

    def spaces(self, z: Tensor) -> dict[str, Tensor]:
        """The mean of the student's Gaussian, before the predictor."""
        return {"mean": self.head(z).chunk(2, 1)[0]}

    def statistics(self, z: Tensor) -> dict[str, Tensor]:
        """The mean variance of the student's Gaussian."""
        return {"variance": self.head(z).chunk(2, 1)[1].mean(1)}

    def ood_scores(self, z: Tensor) -> dict[str, Tensor]:
        """``variance_trace``, the sum of the variances of the student's Gaussian."""
        return {"variance_trace": self.head(z).chunk(2, 1)[1].sum(1)}
