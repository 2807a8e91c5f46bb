"""Effective rank (Roy and Vetterli, "The effective rank: a measure of effective dimensionality", EUSIPCO 2007)."""

import torch
from torch import Tensor


def effective_rank(x: Tensor) -> float:
    r"""Exponential of the entropy of the normalised singular values of a matrix.

    .. math:: \exp\Bigl(-\sum_i p_i \log p_i\Bigr), \quad p_i = \sigma_i / \sum_j \sigma_j

    Args:
        x: one embedding a row, shape ``[N, D]``.

    >>> round(effective_rank(torch.eye(4)), 6)
    4.0
    """
    return effective_rank_of_gram(x.double().T @ x.double())


def effective_rank_of_gram(gram: Tensor) -> float:
    """Effective rank of a matrix X, given X'X of shape ``[D, D]``, as can be summed up over batches.

    >>> round(effective_rank_of_gram(torch.diag(torch.tensor([4.0, 1.0, 0.0]))), 4)  # singular values 2, 1, 0
    1.8899
    """
    if not torch.isfinite(gram).all():
        return float("nan")
    eigenvalues = torch.linalg.eigvalsh(gram.cpu().double())
    floor = eigenvalues[-1] * len(gram) * torch.finfo(torch.float64).eps  # rounding, not rank
    singular = torch.where(eigenvalues > floor, eigenvalues, 0.0).clamp_min(0).sqrt()
    total = singular.sum()
    if total == 0:
        return 0.0
    p = singular / total
    return float(torch.exp(torch.special.entr(p).sum()))
