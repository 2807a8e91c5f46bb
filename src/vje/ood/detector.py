"""Scoring images in production: how unusual each is, and whether it is an outlier at a chosen false-alarm rate."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from vje.data.batches import evaluation_batches
from vje.data.decode import read_image, to_mode
from vje.data.folders import scan_paths
from vje.data.sources import ArraySource, ImageSource
from vje.data.views import Views
from vje.errors import UserError
from vje.evaluation.features import Report, embed_views, weights_fingerprint
from vje.likelihood import directional_contributions
from vje.methods.vje import OOD_SCORES, VJE
from vje.models import load_vje
from vje.ood.conformal import CALIBRATE_AGAIN, Calibration, check_alpha, outliers, p_values, sorted_scores
from vje.resize import fit_image

COLUMNS = (*OOD_SCORES, "kl", "variance", "anisotropy", "cosine_mean_z")
"""What :meth:`ImageDetector.score` gives for each image, beside ``p_value`` and ``outlier``."""

SCORES = {**dict.fromkeys((*OOD_SCORES, "variance"), 1), **dict.fromkeys(("kl", "anisotropy"), -1)}
"""The columns that can be calibrated, and the sign that makes larger mean more out-of-distribution."""

BATCH = 256
CHANNELS = (1, 3, 4)

Path_ = str | os.PathLike[str]
Pixels = Tensor | NDArray[np.uint8]
Images = Pixels | Image.Image | Path_ | Sequence[Pixels | Image.Image | Path_]


class ScoredBatch(NamedTuple):
    """Some of a source's images.

    Attributes:
        indices: their places in the source.
        scores: as :meth:`ImageDetector.score` gives them; empty if no image of the batch could be read.
        failures: (place in the source, reason) of each unreadable file.
    """

    indices: list[int]
    scores: dict[str, Tensor]
    failures: list[tuple[int, str]]


class ImageDetector:
    """A trained model that scores images and, once calibrated, tells outliers; public as ``vje.ood.Detector``.

    Args:
        model: with its preprocessing; it is put into evaluation mode.
        calibration: scores of held-out images under this very model.
        file: where :meth:`save_calibration` writes.
        views: of each image, over which its scores are means: "one", "mirror" or "ten" (:func:`vje.data.views.views`).
    """

    def __init__(
        self, model: VJE, calibration: Calibration | None = None, file: Path | None = None, views: Views = "one"
    ) -> None:
        if model.preprocessing is None:
            raise UserError("this model has no preprocessing, so images cannot be prepared for it.")
        if views not in get_args(Views):
            raise UserError(f"views must be one of {', '.join(get_args(Views))}, got {views!r}.")
        self.model = model.eval()
        self.preprocessing = model.preprocessing
        self.calibration = calibration
        self.file = file
        self.views = views
        self._checked: list[tuple[int, int]] | None = None  # version of weights known to be the calibration's

    @classmethod
    def from_run(
        cls, path: str | Path, device: str = "auto", calibrated: bool = True, views: Views | None = None
    ) -> "ImageDetector":
        """The model of a run, with the run's calibration if it has one.

        Args:
            path: run folder, or a model's ``.safetensors`` file.
            device: where to compute; "auto" is the GPU if there is one.
            calibrated: read the calibration; one that was made for other weights is an error.
            views: of each image; the default is what was calibrated, or "one".
        """
        if device == "auto":
            device = str(torch.accelerator.current_accelerator(check_available=True) or "cpu")
        detector = cls(load_vje(path, device), file=calibration_file(Path(path)), views=views or "one")
        if calibrated and detector.file is not None and detector.file.exists():
            found = Calibration.read(detector.file)
            if found.score not in SCORES:
                raise UserError(f"{detector.file} holds the unknown score {found.score!r}: {CALIBRATE_AGAIN}")
            if found.weights != weights_fingerprint(detector.model):
                raise UserError(f"{detector.file} belongs to other weights than the model has now: {CALIBRATE_AGAIN}")
            if found.views not in get_args(Views) or (views is not None and views != found.views):
                again = CALIBRATE_AGAIN.replace("RUN", f"RUN --views {views or 'one'}")
                raise UserError(f"{detector.file} was made with views {found.views!r}: use these, or {again}")
            detector.calibration, detector.views = found, cast(Views, found.views)
            detector._checked = detector._version()
        return detector

    def score(self, images: Images, alpha: float = 0.05, explain: bool = False) -> dict[str, Tensor]:
        """How unusual each image is.

        Args:
            images: uint8 (0..255) tensor or array, ``[B, C, H, W]`` or ``[B, H, W, C]`` with 1, 3 or 4 channels; or a
                list of single images, which may have different sizes: tensors and arrays ``[C, H, W]`` or
                ``[H, W, C]``, Pillow images and paths of image files. One image alone is a batch of one. A shape that
                could be either has its channels first.
            alpha: false-alarm rate, for ``outlier``.
            explain: add ``contributions``, ``[B, D]``: what each feature adds to ``nll_directional``.
                ``contributions.topk(10)`` are the ten features that speak most against the image.

        Returns:
            For each image, ``[B]``, on the CPU: the columns of :meth:`vje.VJE.score`, ``p_value`` (float64) and
            ``outlier``, ``p_value <= alpha``. An image exchangeable with the calibration images is called an outlier
            with probability ``alpha`` at most (:func:`vje.ood.conformal.p_values`). Without a calibration, ``p_value``
            is NaN and ``outlier`` False for every image.

        Raises:
            UserError: an image cannot be read.
        """
        check_alpha(alpha)
        parts = [self._judged(self._measure(batch, explain), alpha) for batch in self._fitted(images)]
        if not parts:
            nothing = torch.zeros(0, self.preprocessing.channels, *[self.preprocessing.crop] * 2, dtype=torch.uint8)
            parts = [self._judged(self._measure(nothing, explain), alpha)]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def stream(
        self, source: ImageSource, alpha: float = 0.05, explain: bool = False, batch_size: int = BATCH, workers: int = 0
    ) -> Iterator[ScoredBatch]:
        """:meth:`score` for a source of any size, batch by batch and in order, in constant memory.

        Args:
            source: the images.
            alpha: as for :meth:`score`.
            explain: as for :meth:`score`.
            batch_size: images at a time.
            workers: threads, or for many files processes, that decode.
        """
        check_alpha(alpha)
        for batch in evaluation_batches(source, self.preprocessing, batch_size, workers):
            scores = self._judged(self._measure(batch.images, explain), alpha) if len(batch.images) else {}
            yield ScoredBatch(batch.indices.tolist(), scores, batch.failures)

    def calibrate(
        self,
        images: ImageSource | Path_ | Images,
        score: str = "nll",
        name: str | None = None,
        batch_size: int = BATCH,
        workers: int = 0,
        report: Report | None = None,
    ) -> Calibration:
        """Score held-out images, to compare new ones with. The model must not have been trained on them.

        Args:
            images: a source, a folder, or what :meth:`score` takes. Files that cannot be read are passed over.
            score: one of :data:`SCORES`.
            name: what to call the images; the default is their source's name.
            batch_size: images at a time.
            workers: threads, or for many files processes, that decode.
            report: told (images done, images in all) after each batch.
        """
        if score not in SCORES:
            raise UserError(f"there is no score {score!r} to calibrate; scores: {', '.join(SCORES)}.")
        source = _as_source(images)
        if isinstance(source, list):
            data, fingerprint, found = "images", "", [self.score(source)[score]]
        else:
            data, fingerprint, found = source.name, source.fingerprint(), []
            done, reason = 0, ""
            for batch in self.stream(source, batch_size=batch_size, workers=workers):
                found += [batch.scores[score]] if batch.scores else []
                if batch.failures and not reason:
                    reason = f"; {source.names[batch.failures[0][0]]}: {batch.failures[0][1]}"
                done += len(batch.indices) + len(batch.failures)
                if report is not None:
                    report(done, len(source))
            if not found:
                raise UserError(f"none of the {len(source)} images to calibrate with could be read{reason}")
        self.calibration = Calibration(
            scores=sorted_scores(SCORES[score] * torch.cat(found).double().numpy()),
            score=score,
            data=name or data,
            fingerprint=fingerprint,
            weights=weights_fingerprint(self.model),
            views=self.views,
        )
        self._checked = self._version()
        return self.calibration

    def save_calibration(self, file: str | Path | None = None) -> Path:
        """Write the calibration, by default beside the model, where :meth:`from_run` finds it."""
        target = self.file if file is None else Path(file)
        if self.calibration is None:
            raise UserError("there is no calibration to save: call calibrate first.")
        if target is None:
            raise UserError("this detector was not loaded from a run: say where to save the calibration.")
        self.calibration.save(target)
        return target

    def __repr__(self) -> str:
        found, model = self.calibration, self.model
        how = f"{found.score} of {len(found.scores):,} images of {found.data}" if found else "no calibration"
        return f"Detector({model.name()}, D = {model.encoder.dim}, {how})"

    @property
    def ranked_by(self) -> str:
        """The column that decides what is typical: the calibrated one, else the NLL."""
        return "nll" if self.calibration is None else self.calibration.score

    @property
    def sign(self) -> int:
        """1 if large values of that column are unusual, -1 if small ones are."""
        return SCORES[self.ranked_by]

    @torch.no_grad()
    def _measure(self, images: Tensor, explain: bool) -> dict[str, Tensor]:
        """The columns of uint8 images that have their final size, each the mean over the views or what says more."""
        model = self.model.eval()  # it may have been trained on since
        images = images.to(next(model.parameters()).device)
        z = embed_views(model, images, self.views)  # [V, B, D]
        scores = {name: x.mean(0) for name, x in model.score_embeddings(z).items()}
        if len(z) > 1:
            scores |= model.view_scores(z)
        found = {name: scores[name].cpu() for name in COLUMNS}
        if explain:
            q = model.inference(z)
            terms = directional_contributions(z, q.mean, q.variance, model.nu, model.center_variance)
            found["contributions"] = terms.mean(0).cpu()
        return found

    def _judged(self, scores: dict[str, Tensor], alpha: float) -> dict[str, Tensor]:
        if self.calibration is None:
            unknown = torch.full_like(scores["nll"], torch.nan, dtype=torch.float64)
            return scores | {"p_value": unknown, "outlier": torch.zeros_like(unknown, dtype=torch.bool)}
        if self.calibration.weights and self._checked != self._version():
            if weights_fingerprint(self.model) != self.calibration.weights:
                raise UserError("this calibration is of other weights than the model has now: calibrate anew.")
            self._checked = self._version()
        ranks = (self.sign * scores[self.ranked_by]).double()
        ranks = ranks.nan_to_num(torch.inf, torch.inf, -torch.inf)  # NaN: as odd as can be
        p = p_values(self.calibration.scores, ranks.numpy())
        return scores | {"p_value": torch.from_numpy(p), "outlier": torch.from_numpy(outliers(p, alpha))}

    def _version(self) -> list[tuple[int, int]]:
        """What changes as weights are trained or loaded, though not if their .data is: cheaper to look at than they."""
        weights = self.model.state_dict(keep_vars=True).values()
        return [(x.data_ptr(), 0 if x.is_inference() else x._version) for x in weights]

    def _fitted(self, images: Images) -> Iterator[Tensor]:
        """Batches of uint8 images of the size that the encoder wants."""
        if isinstance(images, Tensor | np.ndarray):
            if tuple(images.shape[:1]) != (0,):
                source = _array_source(images)
                yield from (batch.images for batch in evaluation_batches(source, self.preprocessing, BATCH))
            return
        items = _listed(images)
        for start in range(0, len(items), BATCH):
            yield torch.from_numpy(np.stack([self._fitted_one(item) for item in items[start : start + BATCH]]))

    def _fitted_one(self, item: Any) -> NDArray[np.uint8]:
        """One image of a list."""
        prepare = self.preprocessing
        if isinstance(item, Tensor | np.ndarray):
            return _array_source(item, alone=True).fitted(0, prepare.size, prepare.crop, prepare.channels)
        return fit_image(_picture(item, prepare.channels, 2 * prepare.size), prepare.size, prepare.crop)


def calibration_file(path: Path) -> Path:
    """Where the calibration of a run folder, or of a model file, is kept.

    >>> calibration_file(Path("models/birds.safetensors")).name
    'birds.calibration.safetensors'
    """
    if path.suffix != ".safetensors" or path.is_dir():
        return path / "calibration.safetensors"
    stem = "" if path.name == "model.safetensors" else f"{path.stem}."
    return path.with_name(f"{stem}calibration.safetensors")


def _as_source(images: Any) -> ImageSource | list[Any]:
    """The images as a source; or a list that holds more than paths, to be taken as it is."""
    if isinstance(images, ImageSource):
        return images
    if isinstance(images, Tensor | np.ndarray):
        return _array_source(images)
    items = _listed(images)
    return scan_paths(items) if all(isinstance(item, str | os.PathLike) for item in items) else items


def _listed(images: Any) -> list[Any]:
    alone = isinstance(images, str | os.PathLike | Image.Image) or not isinstance(images, Iterable)
    return [images] if alone else list(images)


def _array_source(images: Pixels, alone: bool = False) -> ArraySource:
    """A batch, or one image, which ``alone`` says it must be."""
    shape, dtype = tuple(images.shape), str(images.dtype).removeprefix("torch.")
    if dtype != "uint8":
        raise UserError(
            f"images must be uint8, 0..255, got {dtype} of shape {list(shape)}: multiply floats in [0, 1] by 255, "
            "round them and convert them to uint8."
        )
    one = shape if len(shape) == 3 else shape[1:]
    if len(shape) not in ((3,) if alone else (3, 4)) or not {one[0], one[-1]} & set(CHANNELS):
        batches = "" if alone else "[B, C, H, W] or [B, H, W, C], or one image "
        raise UserError(
            f"images must be uint8 {batches}[C, H, W] or [H, W, C] with 1, 3 or 4 channels, got shape {list(shape)}."
        )
    array = images.detach().cpu().numpy() if isinstance(images, Tensor) else images
    array = array[None] if array.ndim == 3 else array
    return ArraySource(array.transpose(0, 2, 3, 1) if one[0] in CHANNELS else array)


def _picture(item: Any, channels: int, draft: int) -> Image.Image:
    if isinstance(item, Image.Image):
        return to_mode(ImageOps.exif_transpose(item), channels)
    if isinstance(item, str | os.PathLike):
        return read_image(item, channels, draft)
    raise UserError(
        "images are uint8 tensors or arrays, Pillow images, or paths of image files, or a list of these; "
        f"got one of type {type(item).__name__}."
    )
