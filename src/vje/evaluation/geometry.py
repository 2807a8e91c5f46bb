"""Geometry of learned uncertainty: how posterior statistics go with the place of an image among the classes.

Margin and radius are measured between normalised posterior means (paper, Section "Geometry of learned uncertainty").
The distance to the class's centre between the means as they are is a second reading of its radius: the correlations
that the paper prints for the radius are those of this distance (results/README.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vje.errors import UserError

STATISTICS = ("variance", "nll", "kl", "anisotropy")
TERTILES = ("low", "mid", "high")
TRAINING = ("effective_rank", "nll_directional", "nll_radial", "nll_standard", "variance", "kl")
"""What tells over training how embeddings fill their space, and what norms do to the likelihood."""


@dataclass(frozen=True)
class Placement:
    """Where each image is among the classes.

    Attributes:
        margin: cosine to the own class's centre, less the largest to another's, shape ``[N]``.
        radius: one minus the cosine to the own class's centre, shape ``[N]``.
        distance: from the own class's mean, lengths and all, shape ``[N]``.
    """

    margin: Tensor
    radius: Tensor
    distance: Tensor


def place(means: Tensor, labels: Tensor) -> Placement:
    r"""Class-centre margin, within-class radius and distance.

    .. math:: m_i = \cos(\tilde\mu_i, c_{y_i}) - \max_{c \ne y_i} \cos(\tilde\mu_i, c), \quad
        r_i = 1 - \cos(\tilde\mu_i, c_{y_i}), \quad d_i = |\mu_i - \bar\mu_{y_i}|

    with mu~ the unit vectors, c_y the mean of those of class y, and mu-bar_y that of the means themselves.

    Args:
        means: posterior means, shape ``[N, D]``.
        labels: class numbers, shape ``[N]``.

    >>> found = place(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 1]))
    >>> found.margin, found.radius
    (tensor([1., 1.]), tensor([0., 0.]))
    >>> place(torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0, 1])).distance
    tensor([1., 1., 0.])
    """
    classes, group = labels.unique(return_inverse=True)
    if len(classes) < 2:
        raise UserError("a margin is between classes, and these images are all of one: geometry needs two or more.")
    means = means.double()
    unit = normalize(means, dim=1)
    centres = normalize(_class_means(unit, group, len(classes)), dim=1)
    cosines = unit @ centres.T  # [N, C]
    own = cosines.gather(1, group[:, None]).squeeze(1)
    others = cosines.scatter(1, group[:, None], -torch.inf).amax(1)
    distance = (means - _class_means(means, group, len(classes))[group]).norm(dim=1)
    return Placement((own - others).float(), (1 - own).float(), distance.float())


def _class_means(x: Tensor, group: Tensor, classes: int) -> Tensor:
    """Mean of the rows of each class, shape ``[C, D]``."""
    sums = torch.zeros(classes, x.shape[1], dtype=x.dtype, device=x.device).index_add_(0, group, x)
    return sums / group.bincount(minlength=classes)[:, None]


def tertiles(values: Tensor) -> Tensor:
    """Third of the ranking that each value is in: 0 lowest to 2 highest, of sizes that differ by one at most.

    >>> tertiles(torch.tensor([5.0, 1.0, 9.0, 2.0]))
    tensor([1, 0, 2, 0])
    """
    order = values.argsort(stable=True)
    third = torch.empty_like(order)
    for number, rows in enumerate(order.tensor_split(3)):
        third[rows] = number
    return third


def spearman(x: Tensor, y: Tensor) -> float:
    """Spearman's rank correlation, ties sharing their mean rank (scipy's definition)."""
    from scipy.stats import spearmanr

    return float(spearmanr(x.cpu().numpy(), y.cpu().numpy()).statistic)


def geometry(means: Tensor, labels: Tensor, statistics: Mapping[str, Tensor]) -> dict[str, Any]:
    """The paper's geometry table: statistics by tertile of the margin, and rank correlations with each placement.

    Args:
        means: posterior means, shape ``[N, D]``.
        labels: class numbers, shape ``[N]``.
        statistics: numbers that describe each image, by name, each ``[N]``; those of :data:`STATISTICS` are used.

    Returns:
        ``tertiles.<low|mid|high>.<statistic>.mean|std`` with ``images`` in each,
        ``spearman.<margin|radius|distance>.<statistic>``, and the means of margin, radius and distance.
    """
    placement = place(means, labels)
    chosen = {name: statistics[name].to(means.device).double() for name in STATISTICS}
    third = tertiles(placement.margin)
    table: dict[str, Any] = {}
    for number, title in enumerate(TERTILES):
        rows = third == number
        row: dict[str, Any] = {
            name: {"mean": float(x[rows].mean()), "std": float(x[rows].std())} for name, x in chosen.items()
        }
        table[title] = row | {"images": int(rows.sum())}
    places = vars(placement)  # margin, radius, distance
    return {
        "images": len(means),
        "classes": len(labels.unique()),
        **{title: float(values.double().mean()) for title, values in places.items()},
        "tertiles": table,
        "spearman": {
            title: {name: spearman(values, x) for name, x in chosen.items()} for title, values in places.items()
        },
    }


def training_curves(records: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Effective rank, the diagnostics of direction and norm, variance and KL over training, as they were recorded.

    All are of an epoch's training images as the loss sees them. With the standard likelihood, the directional and the
    radial part are not what is trained but computed beside it.

    Args:
        records: of the epochs, as ``metrics.jsonl`` has them.

    Returns:
        ``epoch``, and a list of the same length for each of :data:`TRAINING` that was recorded, with None for epochs
        that do not have it; nothing if none was.

    >>> training_curves([{"epoch": 1, "kl": 3.0, "loss": 9.0}, {"epoch": 2, "kl": 2.0, "variance": 0.5}])
    {'epoch': [1, 2], 'variance': [None, 0.5], 'kl': [3.0, 2.0]}
    """
    recorded = [name for name in TRAINING if any(name in record for record in records)]
    names = ("epoch", *recorded) if recorded else ()
    return {name: [record.get(name) for record in records] for name in names}
