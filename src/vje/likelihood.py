r"""The VJE likelihood: negative log-densities of a target embedding given a latent sample.

Equation labels are those of "Joint Embedding Variational Bayes" (Oji and Fieguth, TMLR 2026). Every function is pure,
reduces the last dimension (the D features) and broadcasts over the rest. Additive constants that depend on nothing
trainable are left out, as in the paper. Half-precision inputs are computed in float32: log-densities lose their
meaning in fewer bits.

Symbols: ``z`` target embedding, ``s`` latent sample, ``v`` per-feature variance, ``nu`` degrees of freedom, hats for
unit vectors, ``theta`` the angle between them, ``t`` the log-map of z_hat at s_hat.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

NORM_FLOOR = 1e-6
"""Smallest norm used as a divisor, so that a zero vector has a finite direction and a finite gradient."""

ANTIPODE_CLAMP = 10.0
"""Smallest cos^2(theta/2), in units of the dtype's epsilon: the curvature term diverges at the antipode, and this is
where it is held (2 mrad short of it in float32, 0.1 microradians in float64). Nearer still, Q falls to 0, as the
log-map's direction comes to be rounding alone."""


def directional_nll(
    target: Tensor,
    sample: Tensor,
    variance: Tensor,
    nu: float = 1.0,
    center_variance: bool = False,
) -> Tensor:
    r"""Student-t negative log-density of the target's direction, in the tangent space at the sample's direction.

    Eq. dir-nll, with k = D - 1, w = 1/v and n = s_hat:

    .. math::
        t = \frac{\theta}{\sin\theta}(\hat z - \cos\theta\,\hat s), \quad
        c = \sum n^2 w, \quad
        Q = \sum t^2 w - \Bigl(\sum t\,n\,w\Bigr)^2 / c

        \ell = \tfrac{\nu+k}{2}\log(1 + Q/\nu) + \tfrac12\sum\log v + \tfrac12\log c
               + (D-2)(\log\sin\theta - \log\theta)

    Only the directions of ``target`` and ``sample`` matter. The last term is unbounded below as theta -> pi, so
    theta / sin(theta) is held just short of it.

    Args:
        target: embedding z of the other view, shape ``[..., D]``.
        sample: latent sample s, shape ``[..., D]``.
        variance: posterior variance v > 0, shape ``[..., D]``.
        nu: degrees of freedom; ``math.inf`` is the Gaussian limit, Q/2.
        center_variance: divide v by its geometric mean first (the paper does so for ImageNet-1K).

    Returns:
        The negative log-density up to a constant, shape ``[...]``.

    >>> north, east = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([1.0, 0.0, 0.0])
    >>> directional_nll(north, north, torch.ones(3)).item()
    0.0
    >>> round(directional_nll(east, north, torch.ones(3), nu=math.inf).item(), 4)  # theta^2/2 - log(theta)
    0.7821
    """
    target, sample, variance = _checked(nu, target=target, sample=sample, variance=variance)
    dim = target.shape[-1]
    tangent = _tangent(target, sample, variance, center_variance)
    log_det = 0.5 * (tangent.log_v.sum(-1) + tangent.c.squeeze(-1).log())
    log_jacobian = -(dim - 2) * tangent.ratio.squeeze(-1).log()
    return _student_t(tangent.squares.sum(-1), nu, dim - 1) + log_det + log_jacobian


def directional_contributions(
    target: Tensor,
    sample: Tensor,
    variance: Tensor,
    nu: float = 1.0,
    center_variance: bool = False,
) -> Tensor:
    """What each feature adds to :func:`directional_nll`; the sum over features is exactly that.

    The Student-t term is shared out in proportion to each feature's part of Q, log c in proportion to its part of c,
    and the curvature term in proportion to its part of |t|^2; log v is each feature's own.

    Args:
        target: embedding z, shape ``[..., D]``.
        sample: latent sample s, shape ``[..., D]``.
        variance: posterior variance v > 0, shape ``[..., D]``.
        nu: degrees of freedom.
        center_variance: as for :func:`directional_nll`.

    Returns:
        Contributions, shape ``[..., D]``.

    >>> _ = torch.manual_seed(0)
    >>> z, s, v = torch.randn(5, 8), torch.randn(5, 8), torch.rand(5, 8) + 0.1
    >>> torch.allclose(directional_contributions(z, s, v).sum(-1), directional_nll(z, s, v), atol=1e-5)
    True
    """
    target, sample, variance = _checked(nu, target=target, sample=sample, variance=variance)
    dim = target.shape[-1]
    tangent = _tangent(target, sample, variance, center_variance)
    student = _student_t(tangent.squares.sum(-1, keepdim=True), nu, dim - 1)
    curvature = -(dim - 2) * tangent.ratio.log()
    return (
        student * _shares(tangent.squares)
        + 0.5 * tangent.log_v
        + 0.5 * tangent.c.log() * _shares(tangent.normal)
        + curvature * _shares(tangent.t.square())
    )


class _Tangent(NamedTuple):
    """The tangent space at s_hat, seen from the target."""

    t: Tensor  # log-map of z_hat, [..., D]
    ratio: Tensor  # theta / sin(theta), [..., 1]
    squares: Tensor  # what each feature adds to Q, [..., D]
    normal: Tensor  # what each feature adds to c, [..., D]
    c: Tensor  # [..., 1]
    log_v: Tensor  # [..., D]


def _tangent(target: Tensor, sample: Tensor, variance: Tensor, center_variance: bool) -> _Tangent:
    log_v = variance.log()
    if center_variance:
        log_v = log_v - log_v.mean(-1, keepdim=True)
    w = torch.exp(-log_v)

    z_hat, n = unit(target), unit(sample)
    sin2, cos2 = half_angle(z_hat, n)  # [..., 1]
    ratio = theta_over_sine(sin2, cos2)
    t = ratio * (z_hat - (cos2 - sin2) * n)  # cos(theta) = cos^2(theta/2) - sin^2(theta/2)

    normal = n * n * w
    c = normal.sum(-1, keepdim=True).clamp_min(1e-16)  # 0 if the sample is
    b = (t * n * w).sum(-1, keepdim=True)
    squares = (t - (b / c) * n).square() * w  # they sum to sum t^2 w - b^2/c, and cannot round below zero
    return _Tangent(t, ratio, squares, normal, c, log_v)


def _shares(parts: Tensor) -> Tensor:
    """Parts of a whole, as fractions of it; equal ones if there is nothing to share."""
    whole = parts.sum(-1, keepdim=True)
    return torch.where(whole > 0, parts / torch.where(whole > 0, whole, 1.0), 1 / parts.shape[-1])


def radial_nll(target: Tensor, sample: Tensor, nu: float = 1.0) -> Tensor:
    r"""Student-t negative log-density of the target's norm around the sample's (Eq. rad-nll-arch, unit scale).

    .. math:: \ell = \tfrac{\nu+1}{2}\log\bigl(1 + (|z|-|s|)^2/\nu\bigr)

    Args:
        target: embedding z of the other view, shape ``[..., D]``.
        sample: latent sample s, shape ``[..., D]``.
        nu: degrees of freedom; ``math.inf`` is the Gaussian limit.

    Returns:
        The negative log-density up to a constant, shape ``[...]``.

    >>> round(radial_nll(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0])).item(), 4)  # log(1 + 3^2)
    2.3026
    """
    target, sample = _checked(nu, target=target, sample=sample)
    return _student_t((norm(target) - norm(sample)).square().squeeze(-1), nu, 1)


def standard_nll(target: Tensor, sample: Tensor, variance: Tensor, nu: float = 1.0) -> Tensor:
    r"""Unfactorised Student-t negative log-density of the embedding itself (Eq. elliptical-t).

    .. math:: \ell = \tfrac{\nu+D}{2}\log\bigl(1 + \tfrac1\nu\sum (z-s)^2/v\bigr) + \tfrac12\sum\log v

    It couples direction and magnitude; the paper uses it to show the norm pathology.

    Args:
        target: embedding z of the other view, shape ``[..., D]``.
        sample: latent sample s, shape ``[..., D]``.
        variance: posterior variance v > 0, shape ``[..., D]``.
        nu: degrees of freedom; ``math.inf`` is the Gaussian limit.

    Returns:
        The negative log-density up to a constant, shape ``[...]``.

    >>> standard_nll(torch.tensor([3.0, 1.0]), torch.tensor([1.0, 1.0]), torch.ones(2), nu=math.inf).item()
    2.0
    """
    target, sample, variance = _checked(nu, target=target, sample=sample, variance=variance)
    q = ((target - sample).square() / variance).sum(-1)
    return _student_t(q, nu, target.shape[-1]) + 0.5 * variance.log().sum(-1)


def gaussian_kl(mean: Tensor, variance: Tensor) -> Tensor:
    r"""KL divergence from N(mean, diag(variance)) to the standard normal prior (Eq. kl-arch, one view).

    .. math:: \tfrac12 \sum (v + \mu^2 - 1 - \log v)

    Args:
        mean: posterior mean, shape ``[..., D]``.
        variance: posterior variance > 0, shape ``[..., D]``.

    Returns:
        The divergence, shape ``[...]``.

    >>> gaussian_kl(torch.tensor([1.0, 0.0]), torch.ones(2)).item()
    0.5
    """
    mean, variance = _checked(1.0, mean=mean, variance=variance)
    return 0.5 * (variance + mean.square() - 1 - variance.log()).sum(-1)


def at_least_float32(x: Tensor) -> Tensor:
    """The tensor itself, or in float32 if it came in half precision."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def norm(x: Tensor) -> Tensor:
    """Euclidean norm over the last dimension, kept, and never under the floor."""
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return length.clamp_min(NORM_FLOOR)


def unit(x: Tensor) -> Tensor:
    """The direction of x; zero for a zero vector."""
    return x / norm(x)


def half_angle(a_hat: Tensor, b_hat: Tensor) -> tuple[Tensor, Tensor]:
    """Squared sine and cosine of theta/2 between unit vectors, each ``[..., 1]``; the cosine is held above zero.

    Chords keep the digits that 1 - cos(theta) and 1 + cos(theta) lose near 0 and pi, and have gradients where
    arccos has none. A zero vector, which has no direction, is at a right angle to every direction.
    """
    near = (a_hat - b_hat).square().sum(-1, keepdim=True)
    far = (a_hat + b_hat).square().sum(-1, keepdim=True)
    total = (near + far).clamp_min(NORM_FLOOR)
    return near / total, (far / total).clamp_min(ANTIPODE_CLAMP * torch.finfo(far.dtype).eps)


def theta_over_sine(sin2_half: Tensor, cos2_half: Tensor) -> Tensor:
    """Theta / sin(theta) from sin^2(theta/2) and cos^2(theta/2), by its series where 0/0 threatens.

    >>> theta_over_sine(torch.tensor([0.0, 0.5]), torch.tensor([1.0, 0.5]))  # theta = 0 and pi/2
    tensor([1.0000, 1.5708])
    """
    small = sin2_half < 1e-3
    sine = torch.where(small, 0.5, sin2_half).sqrt()  # keeps the unused branch, and its gradient, finite
    cosine = torch.where(small, 0.5, cos2_half).sqrt()
    exact = torch.atan2(sine, cosine) / (sine * cosine)
    y = torch.where(small, sin2_half, 0.0)
    series = 1 + y * (2 / 3 + y * (8 / 15 + y * (16 / 35 + y * (128 / 315 + y * (256 / 693)))))
    return torch.where(small, series, exact)


def _student_t(q: Tensor, nu: float, dim: int) -> Tensor:
    """Student-t kernel of a squared distance q in ``dim`` dimensions; Gaussian at nu = inf."""
    return q / 2 if math.isinf(nu) else (nu + dim) / 2 * torch.log1p(q / nu)


def _checked(nu: float, **tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in float32 or better, after checking what a caller can get wrong."""
    if not nu > 0:
        raise ValueError(f"nu must be positive (math.inf is the Gaussian limit), got {nu}")
    shapes = {name: tuple(x.shape) for name, x in tensors.items()}
    if len({shape[-1:] for shape in shapes.values()}) != 1 or () in shapes.values():
        raise ValueError(f"the last dimension (features) must be the same for all, got shapes {shapes}")
    return tuple(at_least_float32(x) for x in tensors.values())
