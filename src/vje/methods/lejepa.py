"""LeJEPA (Balestriero and LeCun, "Provable and scalable self-supervised learning without the heuristics", 2025)."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vje.likelihood import at_least_float32
from vje.methods.method import BatchNormViews, Method, StepOutput, step_output, two_views
from vje.networks.encoders import Encoder
from vje.networks.gather import gather
from vje.networks.heads import mlp
from vje.preprocessing import Preprocessing
from vje.random import Draws, Stream


def epps_pulley(x: Tensor, knots: int = 17, t_max: float = 5.0) -> Tensor:
    r"""How far samples of a real number are from N(0, 1): the statistic of Epps and Pulley (1983).

    .. math:: N \int_{-T}^{T} \Bigl| \frac1N \sum_n e^{i t x_n} - e^{-t^2/2} \Bigr|^2 e^{-t^2/2} \, dt

    by the trapezoid rule, as in the paper's listing. The integrand is even, so half of the knots are enough.

    Args:
        x: samples, shape ``[..., N, M]``; each of the M columns is tested on its own.
        knots: points of the rule on [-T, T], an odd number.
        t_max: T.

    Returns:
        One statistic a column, shape ``[..., M]``.

    >>> quantiles = torch.special.ndtri((torch.arange(1000) + 0.5) / 1000).unsqueeze(1)
    >>> round(epps_pulley(quantiles).item(), 2), round(epps_pulley(0 * quantiles).item(), 1)  # normal, and collapsed
    (0.0, 408.9)
    """
    t = torch.linspace(0, t_max, knots // 2 + 1, dtype=x.dtype, device=x.device)
    normal = torch.exp(-t.square() / 2)  # the characteristic function of N(0, 1), and the weight
    angle = x.unsqueeze(-1) * t  # [..., N, M, T]
    distance = (angle.cos().mean(-3) - normal).square() + angle.sin().mean(-3).square()
    return 2 * x.shape[-2] * torch.trapezoid(distance * normal, t)


def sigreg(y: Tensor, directions: Tensor, knots: int = 17, t_max: float = 5.0) -> Tensor:
    """Sketched isotropic Gaussian regularisation: the mean over directions of :func:`epps_pulley` along each.

    Args:
        y: embeddings, shape ``[..., N, P]``.
        directions: unit vectors, shape ``[P, M]``.
        knots: of the trapezoid rule.
        t_max: of the trapezoid rule.
    """
    return epps_pulley(y @ directions, knots, t_max).mean()


def prediction_loss(y: Tensor) -> Tensor:
    """Mean squared distance of each view's embedding to the mean over views, a feature.

    Args:
        y: embeddings, shape ``[V, N, P]``.

    >>> prediction_loss(torch.tensor([[[1.0, 2.0]], [[3.0, 2.0]]]))
    tensor(0.5000)
    """
    return (y - y.mean(0)).square().mean()


class LeJEPA(Method):
    """LeJEPA: views agree, and embeddings are distributed as N(0, I), which is tested along random directions.

    Args:
        encoder: to train.
        hidden: Width of the projector's hidden layers.
        projection: Width of the projector's output.
        layers: Linear layers of the projector.
        lambd: Lambda, the weight of SIGReg; the prediction loss has one minus it.
        slices: Random directions a step.
        knots: Points of the trapezoid rule on [-T_MAX, T_MAX], an odd number.
        t_max: Where the integral over characteristic functions is cut off.
        batch_norm: Batch-norm statistics over both views together, or each on its own.
        preprocessing: how pixels become encoder input.
    """

    across_images: ClassVar[bool] = True

    def __init__(
        self,
        encoder: Encoder | str,
        *,
        hidden: int = 2048,
        projection: int = 128,
        layers: int = 3,
        lambd: float = 0.05,
        slices: int = 1024,
        knots: int = 17,
        t_max: float = 5.0,
        batch_norm: BatchNormViews = "joint",
        preprocessing: Preprocessing | None = None,
    ) -> None:
        super().__init__(encoder, preprocessing)
        if not 0 <= lambd <= 1:
            raise ValueError(f"lambd shares the loss between its two terms and must be between 0 and 1, got {lambd}")
        if knots < 3 or knots % 2 == 0:
            raise ValueError(f"knots must be an odd number, 3 or more, got {knots}")
        if not t_max > 0:
            raise ValueError(f"t_max must be positive, got {t_max}")
        if min(hidden, projection, layers, slices) < 1:
            raise ValueError(
                "hidden, projection, layers and slices must be 1 or more, "
                f"got {hidden}, {projection}, {layers} and {slices}"
            )
        self.hidden, self.projection, self.layers, self.batch_norm = hidden, projection, layers, batch_norm
        self.lambd, self.slices, self.knots, self.t_max = lambd, slices, knots, t_max
        self.projector = mlp([self.encoder.dim, *[hidden] * (layers - 1), projection])

    def forward(self, views: Sequence[Tensor], draws: Draws | None = None, labels: Tensor | None = None) -> StepOutput:
        """Loss of a pair of views."""
        two_views(self, views)
        z = self.encode(self.encoder, views)  # [2B, D]
        projected = self.apply_head(self.projector, z)
        with torch.autocast(z.device.type, enabled=False):
            y = torch.stack([gather(x) for x in at_least_float32(projected).chunk(2)])  # [2, N, P]
            prediction = prediction_loss(y)
            regularization = sigreg(y, self._directions(y, draws), self.knots, self.t_max)
            loss = (1 - self.lambd) * prediction + self.lambd * regularization
        return step_output(loss, z[: len(views[0])], prediction=prediction, sigreg=regularization)

    def _directions(self, y: Tensor, draws: Draws | None) -> Tensor:
        """Unit vectors ``[P, M]``, uniform on the sphere; the same in every process, whatever images it has."""
        shape = self.projection, self.slices
        if draws is None:
            return normalize(torch.randn(shape, dtype=y.dtype, device=y.device), dim=0)
        common = Draws(draws.seed, draws.step, torch.zeros_like(draws.positions[:1]))
        return normalize(common.normal(Stream.SLICES, self.projection * self.slices).view(shape).to(y.dtype), dim=0)
