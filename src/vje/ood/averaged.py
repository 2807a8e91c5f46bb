"""Scores averaged over several views of each image, in one pass over the images."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vje.data.batches import evaluation_batches
from vje.data.sources import ImageSource
from vje.data.views import Views
from vje.evaluation.features import Report, embed_views
from vje.methods.method import Method
from vje.ood.protocol import Scores, joined

ROWS = 8192
"""Embeddings that are scored at a time."""


def mean_scores(
    model: Method,
    source: ImageSource,
    scorer: Callable[[Tensor], Scores],
    how: Views,
    batch_size: int = 500,
    workers: int = 0,
    report: Report | None = None,
) -> Scores:
    """Each score of each image that can be read, in the source's order: the mean over the views.

    Where the method can say more of several views than a mean (:meth:`Method.view_scores`), its score is that.

    Images are decoded once, and what is kept of them does not grow with the number of views.

    Args:
        model: in evaluation mode, with its preprocessing.
        source: the images.
        scorer: scores of embeddings ``[N, D]``.
        how: which views of each image are scored.
        batch_size: images at a time.
        workers: threads, or for many files processes, that decode.
        report: told (images done, images in all) after each batch.
    """
    assert model.preprocessing is not None
    device = next(model.parameters()).device
    found: list[Scores] = []
    waiting: list[Tensor] = []  # embeddings of some images, [views, B, D] each
    done = 0
    for batch in evaluation_batches(source, model.preprocessing, batch_size, workers):
        images = batch.images.to(device)
        if len(images):
            waiting.append(embed_views(model, images, how))
        done += len(images) + len(batch.failures)
        if sum(x[..., 0].numel() for x in waiting) >= ROWS:
            found.append(_scores(model, scorer, waiting))
            waiting = []
        if report is not None:
            report(done, len(source))
    if waiting:
        found.append(_scores(model, scorer, waiting))
    return joined(found)


def _scores(model: Method, scorer: Callable[[Tensor], Scores], embedded: Sequence[Tensor]) -> Scores:
    """Scores of the views of embeddings ``[views, B, D]``, several batches one after the other."""
    z = torch.cat(list(embedded), dim=1)
    means = {name: x.reshape(z.shape[:2]).mean(0) for name, x in scorer(z.flatten(0, 1)).items()}
    if len(z) == 1:
        return means
    more = model.view_scores(z.to(next(model.parameters()).device))
    return means | {name: x.double().cpu().numpy() for name, x in more.items()}
