"""The contract between a training method and the trainer, which knows nothing else about it."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vje.likelihood import at_least_float32
from vje.networks.encoders import Encoder, build_encoder
from vje.preprocessing import Preprocessing
from vje.random import Draws, Stream
from vje.warn import warn

if TYPE_CHECKING:
    from vje.posterior import DiagonalGaussian

RAW_PIXELS = (
    "float images are taken to be normalised already, and these have no value below 0, as if they were pixels: give "
    "uint8 images, or model.preprocessing.normalize(images) for floats between 0 and 1"
)
TRAINING_MODE = (
    "the model is in training mode, in which batch norm judges an image by the others beside it, and learns from them: "
    "call model.eval() first"
)
BatchNormViews = Literal["joint", "separate"]


class StepOutput(NamedTuple):
    """What one forward pass of a method gives.

    Attributes:
        loss: scalar to minimise, already averaged over the local batch.
        parts: named scalars to report (loss terms, posterior statistics); detached, same keys every step. The alarms
            take ``variance`` and ``kl`` for the posterior's, so other things have other names.
        embeddings: detached encoder outputs of the first view, shape ``[B, D]``, for diagnostics.
    """

    loss: Tensor
    parts: dict[str, Tensor]
    embeddings: Tensor


class Quantity(NamedTuple):
    """A number that a method reports, in words.

    Attributes:
        title: what people call it, as in the middle of a sentence.
        meaning: what it tells, in a line.
        short: its name in the line of an epoch, where it is shown if it has one.
        fraction: whether it goes from 0 to 1; charts show it in percent.
    """

    title: str
    meaning: str = ""
    short: str = ""
    fraction: bool = False


class Method(nn.Module, ABC):
    """A way to train an encoder: the encoder, whatever heads it needs, and a loss on augmented views.

    ``forward`` is called once a step (it is what DistributedDataParallel wraps), with the encoder's precision set by
    the caller's autocast; ``after_step`` once after the optimiser. The constructor's keyword arguments are the method's
    settings: each is kept as an attribute of the same name, and the command line and recipes read them from there.

    Args:
        encoder: an :class:`~vje.networks.encoders.Encoder`, or a name for
            :func:`~vje.networks.encoders.build_encoder`.
        preprocessing: how pixels become encoder input; needed to embed uint8 images and files.

    Attributes:
        needs_labels: whether ``forward`` wants the images' classes.
        across_images: whether the loss of an image depends on the others of the batch.
        views: how many views of each image it wants, at most 2.
        target_momentum: of the moving-average encoder at the start.
        momentum_rises: whether it rises to 1 on a cosine, or stays.
        groups: equal parts that it divides the images of a step into.
        quantities: words for what :meth:`statistics` and a step's parts report, by name, where the name is not enough.
    """

    needs_labels: ClassVar[bool] = False
    across_images: ClassVar[bool] = False
    views: ClassVar[int] = 2
    momentum_rises: ClassVar[bool] = True
    quantities: ClassVar[Mapping[str, Quantity]] = {}
    target_momentum: float = 1.0
    groups: int = 1
    _batch_norm: BatchNormViews = "joint"

    def __init__(self, encoder: Encoder | str, preprocessing: Preprocessing | None = None) -> None:
        super().__init__()
        if isinstance(encoder, nn.Module) and not hasattr(encoder, "dim"):
            raise TypeError(
                f"{type(self).__name__} needs to know how many features the encoder gives: wrap it, "
                "vje.Encoder(network, dim)"
            )
        self.encoder = build_encoder(encoder) if isinstance(encoder, str) else encoder
        self.preprocessing = preprocessing

    @abstractmethod
    def forward(self, views: Sequence[Tensor], draws: Draws | None = None, labels: Tensor | None = None) -> StepOutput:
        """Loss of a batch.

        Args:
            views: of the same images, differently augmented, each ``[B, C, H, W]``.
            draws: the source of randomness, if any is needed.
            labels: class numbers ``[B]``, for the methods that need them.
        """

    def after_step(self, momentum: float | Tensor) -> None:
        """Update what follows the parameters, such as an EMA target; ``momentum`` is that of the schedule."""

    @property
    def batch_norm(self) -> BatchNormViews:
        """Statistics over all views together ("joint", one pass), or over each ("separate", a pass each)."""
        return self._batch_norm

    @batch_norm.setter
    def batch_norm(self, value: BatchNormViews) -> None:
        if value not in get_args(BatchNormViews):
            raise ValueError(f"batch_norm must be one of {', '.join(get_args(BatchNormViews))}, got {value!r}")
        self._batch_norm = value

    @property
    def target_encoder(self) -> nn.Module | None:
        """The moving-average encoder, for methods that have one: as ``target``."""
        found = getattr(self, "target", None)
        return found if isinstance(found, nn.Module) else None

    def leaves_unused(self) -> bool:
        """Whether some parameters may get no gradient in a step, which DistributedDataParallel must know."""
        return False

    def constant_rate(self) -> Iterable[nn.Parameter]:
        """Parameters whose learning rate stays where it starts."""
        return ()

    def encode(self, encoder: nn.Module, views: Sequence[Tensor]) -> Tensor:
        """Embeddings of all views ``[V * B, D]``, view after view, with batch-norm statistics as the method wants."""
        if self.batch_norm == "joint":
            views = [torch.cat(list(views))]
        return torch.cat([encoder(view) for view in views])

    def apply_head(self, head: nn.Module, x: Tensor) -> Tensor:
        """A head on both views' rows ``[2B, D]``, with batch-norm statistics as the method wants."""
        if self.batch_norm == "joint":
            return head(x)  # type: ignore[no-any-return]
        return torch.cat([head(part) for part in x.chunk(2)])

    # What a trained model can say of an image

    def embed(self, images: Tensor | NDArray[Any]) -> Tensor:
        """Embeddings z of images, float32, shape ``[B, D]``.

        Args:
            images: a tensor or array ``[B, C, H, W]``: floats that went through :attr:`preprocessing`, or raw uint8,
                which is sent through it here, by way of the CPU if they are of another size than the model's.
        """
        return at_least_float32(self.encoder(self._prepared(images)))

    def posterior(self, images: Tensor | NDArray[Any]) -> "DiagonalGaussian":
        """The posterior of each image, of models that were trained with VJE; ``images`` as for :meth:`embed`."""
        raise TypeError(f"posterior is for models trained with VJE; {type(self).__name__} has embed, for z alone")

    @torch.no_grad()
    def score(self, images: Tensor | NDArray[Any]) -> dict[str, Tensor]:
        """The method's own scores ``[B]`` of images, as for :meth:`embed`; larger means less typical."""
        self._check_precision()
        found = self.ood_scores(self.embed(images))
        if not found:
            raise TypeError(
                f"{type(self).__name__} has no likelihood or other score of its own to judge images by: fit one of "
                "vje.ood.detectors, such as KNN, on its embeddings, or use a model trained with VJE"
            )
        return found

    def linear_classifier(self) -> nn.Linear | None:
        """The classifier on z that was trained with the encoder, for methods that have one."""
        return None

    def spaces(self, z: Tensor) -> dict[str, Tensor]:
        """Other representations than z itself that k-NN should be tried on, each ``[B, D]``."""
        return {}

    def statistics(self, z: Tensor) -> dict[str, Tensor]:
        """Numbers ``[B]`` that describe each embedding, for the evaluation's averages."""
        return {}

    def ood_scores(self, z: Tensor) -> dict[str, Tensor]:
        """The method's own scores ``[B]`` of embeddings; larger means more out-of-distribution."""
        return {}

    def view_scores(self, z: Tensor) -> dict[str, Tensor]:
        """Scores ``[B]`` of several views of each image, ``[V, B, D]``, that are more than means over the views.

        They take the place of the means of the same names in :meth:`ood_scores`.
        """
        return {}

    def _check_precision(self) -> None:
        """Refuse to compute scores in half precision."""
        precision = next(self.parameters()).dtype
        if precision in (torch.float16, torch.bfloat16):
            raise TypeError(
                f"scores need float32, and this model is in {precision}: call model.float(), and use torch.autocast "
                "for speed"
            )

    def _prepared(self, images: Tensor | NDArray[Any]) -> Tensor:
        if not isinstance(images, Tensor | np.ndarray):
            raise TypeError(
                f"images must be a tensor or an array [B, C, H, W], got {type(images).__name__}; vje.ood.Detector "
                "takes files, Pillow images and lists of them"
            )
        images, wanted = torch.as_tensor(images), self.preprocessing
        precision = next(self.parameters(), images).dtype
        if wanted is not None and images.dim() != 4:
            raise ValueError(f"images must be [B, C, H, W], got {list(images.shape)}")
        if self.training and not torch.is_grad_enabled():
            warn(TRAINING_MODE)
        if images.is_floating_point():
            if images.numel() and bool((images >= 0).all()):
                warn(RAW_PIXELS)
            if wanted is not None and images.shape[1] != wanted.channels:
                raise ValueError(f"the model takes {wanted.channels} channels, and the images have {images.shape[1]}")
            if wanted is not None and images.shape[2:] != (wanted.crop, wanted.crop):
                warn(f"images of {list(images.shape[2:])} pixels, and the model's have {wanted.crop} x {wanted.crop}")
            return images.to(precision)
        if images.dtype != torch.uint8:
            raise ValueError(f"images must be uint8 (0 to 255) or normalised floats, got {images.dtype}")
        if wanted is None:
            raise ValueError(
                "uint8 images need the model's preprocessing, and this model has none: pass preprocessing=... to "
                f"{type(self).__name__}, or give float images that are already normalised"
            )
        return wanted.normalize(wanted.fit(images)).to(precision)

    # Saving

    @classmethod
    def name(cls) -> str:
        """What the method is called in recipes and on the command line: its file's name."""
        return cls.__module__.rpartition(".")[2].replace("_", "-")

    @classmethod
    def quantity(cls, name: str) -> Quantity:
        """The words for one of the numbers that the method reports.

        >>> Method.quantity("off_diagonal").title
        'off diagonal'
        """
        return cls.quantities.get(name, Quantity(name.replace("_", " ")))

    @classmethod
    def settings(cls) -> dict[str, inspect.Parameter]:
        """The constructor's keyword arguments, apart from the encoder and the preprocessing."""
        found = inspect.signature(cls.__init__).parameters
        return {k: p for k, p in found.items() if p.kind is p.KEYWORD_ONLY and k != "preprocessing"}

    def hyperparameters(self) -> dict[str, Any]:
        """The values of :meth:`settings`, as JSON has them."""
        values = {name: getattr(self, name) for name in self.settings()}
        values = {name: x.item() if isinstance(x, Tensor | np.generic) else x for name, x in values.items()}
        return {name: list(x) if isinstance(x, tuple) else x for name, x in values.items()}

    def save(self, path: str | Path) -> Path:
        """Write ``model.safetensors`` and ``model.json``, which together are all that :func:`vje.load` needs.

        Args:
            path: a folder, or the ``.safetensors`` file to write (its description goes beside it as ``.json``).

        Returns:
            The weights file.
        """
        from vje.models import save_model

        return save_model(self, path)


def two_views(method: Method, views: Sequence[Tensor]) -> None:
    """Refuse anything but two views."""
    if len(views) != 2:
        raise ValueError(f"{type(method).__name__} compares two views of each image, got {len(views)}")
    if len(views[0]) != len(views[1]):
        raise ValueError(f"the views must be of the same images, got {len(views[0])} and {len(views[1])} of them")


def two_view_noise(mean: Tensor, draws: Draws | None, samples: int = 1) -> Tensor:
    """Standard normal noise ``[K, 2B, D]`` for posteriors of both views, whose means are ``[2B, D]``.

    Without draws it is from torch's global generator.
    """
    shape = (samples, *mean.shape)
    if draws is None:
        return torch.randn(shape, device=mean.device, dtype=mean.dtype)
    flat = draws.normal(Stream.POSTERIOR, samples * 2 * mean.shape[1])  # [B, K * 2 * D]
    return flat.view(-1, samples, 2, mean.shape[1]).permute(1, 2, 0, 3).reshape(shape)


def step_output(loss: Tensor, z: Tensor, **parts: Tensor) -> StepOutput:
    """What a step gives: its loss, the means of that and its parts, and the first view's embeddings ``[B, D]``."""
    averages = {name: at_least_float32(x.detach()).mean() for name, x in {"loss": loss, **parts}.items()}
    return StepOutput(loss, averages, z.detach().float())
