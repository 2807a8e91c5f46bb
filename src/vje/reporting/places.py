"""t-SNE for a map that follows a model in training: it goes on from the last places, and can be left at any step.

scikit-learn's takes all of its steps at once, on all cores, and those are what training wants. This one is for a
thousand points: every pair of them is looked at in every step, by one core, with the interpreter free for others.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

PERPLEXITY = 30.0
FIRST_STEPS, LATER_STEPS = 350, 120
"""Steps from the principal components, and from places that were those of an earlier model."""

RATE = 50.0
EXAGGERATED, EXAGGERATION = 120, 12.0
"""How many of the first steps pull neighbours together, and how much harder than they should in the end."""

Floats = NDArray[np.float32]


def principal(features: Floats) -> Floats:
    """The first two principal components of the directions of features ``[N, D]``, shape ``[N, 2]``."""
    unit = _directions(features)
    centred = unit - unit.mean(axis=0)
    values, vectors = np.linalg.eigh(centred @ centred.T)  # [N], [N, N]; the largest last
    places: Floats = (vectors[:, :-3:-1] * np.sqrt(np.maximum(values[:-3:-1], 0))).astype(np.float32)
    return places


def settling(features: Floats, start: Floats, first: bool) -> Iterator[Floats]:
    """The places ``[N, 2]`` of features ``[N, D]`` after each step of t-SNE on their directions.

    Args:
        features: five or more, finite and not all alike.
        start: places to begin with.
        first: whether they are the principal components, and not t-SNE's own of an earlier model.
    """
    joint, places = affinities(features), start
    if first:
        places = start * np.float32(1e-4 / max(float(start.std()), 1e-12))  # so close that all can still pass
    velocity, gains = np.zeros_like(places), np.ones_like(places)
    for step in range(FIRST_STEPS if first else LATER_STEPS):
        early = first and step < EXAGGERATED
        slope = gradient(places, joint * np.float32(EXAGGERATION) if early else joint)
        gains = np.where(slope * velocity < 0, gains + np.float32(0.2), gains * np.float32(0.8)).clip(0.01)
        velocity = np.float32(0.5 if early else 0.8) * velocity - np.float32(RATE) * gains * slope
        places = places + velocity
        places -= places.mean(axis=0)
        yield places


def affinities(features: Floats, perplexity: float = PERPLEXITY) -> Floats:
    """How near to each other the directions of features ``[N, D]`` are: t-SNE's joint probabilities ``[N, N]``.

    Args:
        features: the points.
        perplexity: about how many neighbours each has; fewer if there are not three times as many points.
    """
    unit = _directions(features)
    distance = np.maximum(2 - 2 * unit @ unit.T, 0)
    np.fill_diagonal(distance, np.inf)
    distance -= distance.min(axis=1, keepdims=True)  # cancels, and keeps exp in range
    wanted = np.log(min(perplexity, (len(unit) - 1) / 3))
    low, high = np.full((2, len(unit), 1), [[[-10.0]], [[40.0]]])  # logarithms of the sharpness
    for _ in range(32):
        middle = (low + high) / 2
        weights = np.exp(-np.exp(middle).astype(np.float32) * distance)  # [N, N]
        weights /= weights.sum(axis=1, keepdims=True)
        entropy = -(weights * np.log(np.maximum(weights, 1e-30))).sum(axis=1, keepdims=True)
        low, high = np.where(entropy > wanted, middle, low), np.where(entropy > wanted, high, middle)
    joint: Floats = ((weights + weights.T) / (2 * len(unit))).astype(np.float32)
    return joint


def gradient(places: Floats, joint: Floats) -> Floats:
    """Slope ``[N, 2]`` of the divergence of the map's own affinities from ``joint``."""
    lengths = np.square(places).sum(axis=1)
    near = 1 / (1 + np.maximum(lengths[:, None] + lengths - 2 * places @ places.T, 0))  # Student's t, [N, N]
    np.fill_diagonal(near, 0)
    pull = (joint - near / near.sum()) * near
    slope: Floats = 4 * (pull.sum(axis=1, keepdims=True) * places - pull @ places)
    return slope


def _directions(features: Floats) -> Floats:
    unit: Floats = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    return unit
