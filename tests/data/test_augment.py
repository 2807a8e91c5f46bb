"""Every operation against torchvision and Pillow, image by image; what is drawn, against torchvision's crops."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from scipy import stats
from torch import Tensor
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms import functional as F

from vje.build import build_augmentations
from vje.config import AugmentConfig
from vje.data.augment import (
    CROP_DRAWS,
    Augmentation,
    color_jitter,
    crop_boxes,
    gaussian_blur,
    luma,
    resized_crop,
    shift_hue,
)
from vje.random import Draws, Stream

CLOSE = 2e-6
NEUTRAL = {"flip": 0.0, "jitter": 0.0, "grayscale": 0.0}
WHOLE = {"area": (1.0, 1.0), "ratio": (1.0, 1.0)}  # on square images of the final size: nothing changes


def pixels(count: int, height: int = 24, width: int = 20, channels: int = 3, seed: int = 0) -> Tensor:
    """Random uint8 images, from noise to smooth, with black, white and grey areas."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(count, channels, height, width, generator=generator)
    smooth = F.gaussian_blur(noise, [9, 9], [3.0, 3.0])
    share = torch.linspace(0, 1, count).view(-1, 1, 1, 1)
    images = share * noise + (1 - share) * (smooth - 0.3) * 2.5
    images[:, :, :3, :3], images[:, :, -3:, -3:] = 0, 1
    images[:, :, :2, -2:] = 0.5
    return (images.clamp(0, 1) * 255).round().byte()


def unit(images: Tensor) -> Tensor:
    return images.float() / 255


def pil(image: Tensor) -> Image.Image:
    return F.to_pil_image(image)


def levels(image: Image.Image) -> Tensor:
    """A Pillow image as ``[C, H, W]`` levels 0..255."""
    return F.pil_to_tensor(image).float()


def draws(count: int, step: int = 0, seed: int = 0, first: int = 0) -> Draws:
    return Draws(seed, step, torch.arange(first, first + count))


def apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


# Resized crops

BOXES = torch.tensor(
    [(0, 0, 24, 20), (3, 5, 7, 9), (10, 2, 14, 18), (23, 19, 1, 1), (0, 19, 24, 1), (8, 0, 1, 20), (11, 11, 2, 3)]
)
FLIP = torch.tensor([False, True, True, True, False, True, False])


@pytest.mark.parametrize("size", [1, 5, 16, 48])
@pytest.mark.parametrize("channels", [1, 3])
def test_resized_crop_is_torchvisions(size: int, channels: int) -> None:
    images = unit(pixels(len(BOXES), channels=channels))
    ours = resized_crop(images, BOXES, FLIP, size)
    for image, box, flip, result in zip(images, BOXES.tolist(), FLIP, ours, strict=True):
        expected = F.resized_crop(image, *box, [size, size], InterpolationMode.BILINEAR, antialias=True)
        assert apart(result, F.hflip(expected) if flip else expected) < CLOSE


@pytest.mark.parametrize("size", [5, 16, 48])
def test_resized_crop_is_pillows(size: int) -> None:
    images = pixels(len(BOXES))
    ours = resized_crop(unit(images), BOXES, FLIP, size) * 255
    for image, box, flip, result in zip(images, BOXES.tolist(), FLIP, ours, strict=True):
        top, left, height, width = box
        part = pil(image).crop((left, top, left + width, top + height)).resize((size, size), Image.Resampling.BILINEAR)
        assert apart(result, levels(ImageOps.mirror(part) if flip else part)) < 1.6  # Pillow rounds after each pass


def test_the_whole_image_at_its_own_size_is_unchanged() -> None:
    images = pixels(4, 16, 16)
    whole = Augmentation(size=16, **NEUTRAL, **WHOLE)
    assert torch.equal(whole(images, draws(4), Stream.VIEW_1), unit(images))


# Colour

OPERATIONS: list[Callable[[Tensor, float], Tensor]] = [
    F.adjust_brightness,
    F.adjust_contrast,
    F.adjust_saturation,
    F.adjust_hue,
]


def amounts(count: int, seed: int = 1) -> Tensor:
    """Strong jitter, so that values are clamped too: three factors in [0.2, 1.8] and a shift in [-0.5, 0.5]."""
    u = torch.rand(count, 4, generator=torch.Generator().manual_seed(seed))
    return torch.cat([0.2 + 1.6 * u[:, :3], u[:, 3:] - 0.5], 1)


def only(operation: int, values: Tensor) -> Tensor:
    """Amounts that leave all but one operation without effect."""
    neutral = torch.tensor([1.0, 1.0, 1.0, 0.0]).repeat(len(values), 1)
    neutral[:, operation] = values[:, operation]
    return neutral


@pytest.mark.parametrize("operation", range(4))
def test_each_color_operation_is_torchvisions(operation: int) -> None:
    images, values = unit(pixels(12)), amounts(12)
    ours = color_jitter(images, only(operation, values), torch.rand(12, 4), torch.ones(12, dtype=torch.bool))
    for image, value, result in zip(images, values[:, operation].tolist(), ours, strict=True):
        assert apart(result, OPERATIONS[operation](image, value)) < CLOSE


def test_color_operations_follow_one_another_in_any_order() -> None:
    orders = list(permutations(range(4)))
    images, values = unit(pixels(len(orders))), amounts(len(orders))
    keys = torch.tensor([[order.index(operation) / 4 for operation in range(4)] for order in orders])
    ours = color_jitter(images, values, keys, torch.ones(len(orders), dtype=torch.bool))
    for image, row, order, result in zip(images, values.tolist(), orders, ours, strict=True):
        for operation in order:
            image = OPERATIONS[operation](image, row[operation])  # noqa: PLW2901
        assert apart(result, image) < 2 * CLOSE


def test_jitter_leaves_the_others_alone() -> None:
    images, apply = unit(pixels(8)), torch.arange(8) % 2 == 0
    ours = color_jitter(images, amounts(8), torch.rand(8, 4), apply)
    assert torch.equal(ours[~apply], images[~apply])
    assert all(apart(a, b) > 0.1 for a, b in zip(ours[apply], images[apply], strict=True))


@pytest.mark.parametrize("kind", [ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color])
def test_blends_are_pillows(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> None:
    operation = [ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color].index(kind)
    images, values = pixels(12), amounts(12)
    ours = color_jitter(unit(images), only(operation, values), torch.rand(12, 4), torch.ones(12, dtype=torch.bool))
    for image, value, result in zip(images, values[:, operation].tolist(), ours, strict=True):
        assert apart(result * 255, levels(kind(pil(image)).enhance(value))) < 2.1


def test_hue_is_torchvisions_on_uint8_and_near_pillows() -> None:
    images, shift = pixels(12), amounts(12)[:, 3]
    ours = shift_hue(unit(images), shift.view(-1, 1, 1, 1)) * 255
    for image, value, result in zip(images, shift.tolist(), ours, strict=True):
        assert apart(result, F.adjust_hue(image, value).float()) < 1.1
        near = (result - levels(F.adjust_hue(pil(image), value))).abs()  # hue, saturation and value are 8 bits there
        assert near.mean() < 2
        assert near.max() < 12


def test_hue_of_grey_and_pure_colors() -> None:
    colors = torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0], [1.0, 1.0, 0], [0.3, 0.3, 0.3], [0.0, 0.0, 0.0]])
    third = torch.full((6, 1, 1, 1), 1 / 3)
    turned = shift_hue(colors.view(6, 3, 1, 1), third).view(6, 3)
    expected = torch.tensor([[0.0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 1, 1], [0.3, 0.3, 0.3], [0, 0, 0]])
    assert apart(turned, expected) < CLOSE


def test_grayscale_is_torchvisions_and_pillows() -> None:
    images = pixels(6)
    ours = luma(unit(images))
    assert ours.shape == (6, 1, 24, 20)
    assert apart(ours, F.rgb_to_grayscale(unit(images))) < CLOSE
    for image, result in zip(images, ours, strict=True):
        assert apart(result * 255, levels(pil(image).convert("L"))) < 1.1
    square = pixels(3, 16, 16)
    grey = Augmentation(size=16, **(NEUTRAL | {"grayscale": 1.0}), **WHOLE)(square, draws(3), Stream.VIEW_1)
    assert apart(grey, F.rgb_to_grayscale(unit(square), num_output_channels=3)) < CLOSE


# Blur and solarisation


@pytest.mark.parametrize("kernel", [1, 3, 9, 23])
def test_blur_is_torchvisions(kernel: int) -> None:
    images, sigma = unit(pixels(6)), torch.tensor([0.1, 0.3, 0.7, 1.0, 1.5, 2.0])
    ours = gaussian_blur(images, sigma, kernel)
    for image, value, result in zip(images, sigma.tolist(), ours, strict=True):
        assert apart(result, F.gaussian_blur(image, [kernel, kernel], [value, value])) < CLOSE


def test_blur_of_nothing_is_nothing() -> None:
    images = unit(pixels(4))
    ours = gaussian_blur(images, torch.tensor([0.0, 1.0, 0.0, 2.0]), 5)
    assert torch.equal(ours[::2], images[::2])
    assert all(apart(a, b) > 0.01 for a, b in zip(ours[1::2], images[1::2], strict=True))


@pytest.mark.parametrize("side", [1, 2, 4])
def test_a_kernel_wider_than_the_image_is_reflected_back_and_forth(side: int) -> None:
    image = torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(side))
    padded = torch.from_numpy(np.pad(image[0].numpy(), ((0, 0), (5, 5), (5, 5)), mode="reflect"))
    weights = torch.exp(-0.5 * (torch.arange(-5, 6) / 2.0).square())
    kernel = torch.outer(weights, weights) / weights.sum() ** 2
    expected = torch.nn.functional.conv2d(padded.unsqueeze(1), kernel[None, None]).squeeze(1)
    assert apart(gaussian_blur(image, torch.tensor([2.0]), 11)[0], expected) < CLOSE


@pytest.mark.parametrize("kernel", [3, 5])
def test_blur_is_a_pillow_filter(kernel: int) -> None:
    images, sigma = pixels(4), torch.tensor([0.4, 0.8, 1.4, 2.0])
    ours = gaussian_blur(unit(images), sigma, kernel) * 255
    inside = slice(kernel // 2, -(kernel // 2))  # Pillow leaves the borders as they are
    for image, value, result in zip(images, sigma.tolist(), ours, strict=True):
        line = np.exp(-0.5 * ((np.arange(kernel) - kernel // 2) / value) ** 2)
        weights = np.outer(line, line) / line.sum() ** 2
        blurred = levels(pil(image).filter(ImageFilter.Kernel((kernel, kernel), weights.flatten().tolist(), scale=1)))
        assert apart(result[:, inside, inside], blurred[:, inside, inside]) < 1.1


def test_solarize_is_torchvisions_and_pillows() -> None:
    every_level = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(2, 3, 16, 16)
    solarized = Augmentation(size=16, **NEUTRAL, **WHOLE, solarize=1.0)(every_level, draws(2), Stream.VIEW_1)
    assert torch.equal(solarized, F.solarize(unit(every_level), 0.5))
    assert apart(solarized[0] * 255, levels(ImageOps.solarize(pil(every_level[0]), 128))) < 1e-4


# The whole augmentation


def reference(image: Tensor, u: Tensor, settings: Augmentation) -> tuple[Tensor, Tensor]:
    """One image through torchvision with the parameters that its uniform numbers stand for.

    Which number stands for what is part of the run format: a resumed run must draw what it would have drawn. Also
    returns where solarisation may go either way, within rounding.
    """

    def between(value: Tensor, low: float, high: float) -> float:
        return low + (high - low) * float(value)

    top, left, height, width = crop_boxes(u[None, :CROP_DRAWS], *image.shape[-2:], settings.area, settings.ratio)[0]
    v = u[CROP_DRAWS:]
    x = F.resized_crop(unit(image), top, left, height, width, [settings.size] * 2, antialias=True)
    x = F.hflip(x) if v[0] < settings.flip else x
    if v[1] < settings.jitter:
        strengths = (settings.brightness, settings.contrast, settings.saturation)
        values = [between(v[2 + i], 1 - s, 1 + s) for i, s in enumerate(strengths)]
        values.append(between(v[5], -settings.hue, settings.hue))
        for operation in v[6:10].argsort().tolist():
            if x.shape[0] == 3 or operation < 2:
                x = OPERATIONS[operation](x, values[operation])
    if v[10] < settings.grayscale and x.shape[0] == 3:
        x = F.rgb_to_grayscale(x, num_output_channels=3)
    if v[11] < settings.blur:
        sigma = between(v[12], *settings.blur_sigma)
        x = F.gaussian_blur(x, [settings.blur_kernel] * 2, [sigma] * 2)
    doubtful = (x - 0.5).abs() < 1e-5
    return F.solarize(x, 0.5) if v[13] < settings.solarize else x, doubtful


BYOL = build_augmentations(AugmentConfig(), size=16)
SIMSIAM = build_augmentations(
    AugmentConfig(crop_area=(0.2, 1.0), saturation=0.4, blur=(0.5, 0.5), solarize=(0.0, 0.0)), size=16
)
VICREG = build_augmentations(
    AugmentConfig(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1, blur=(1.0, 0.1), solarize=(0.0, 0.2)), size=16
)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("recipe", [BYOL, SIMSIAM, VICREG], ids=["byol", "simsiam", "vicreg"])
def test_recipes_are_torchvisions(recipe: list[Augmentation], channels: int) -> None:
    images, numbers = pixels(40, channels=channels), draws(40, step=3)
    for stream, settings in zip((Stream.VIEW_1, Stream.VIEW_2), recipe, strict=True):
        ours = settings(images, numbers, stream)
        assert ours.shape == (40, channels, 16, 16)
        assert ours.dtype == torch.float32
        for image, u, result in zip(images, numbers.uniform(stream, CROP_DRAWS + 14), ours, strict=True):
            expected, doubtful = reference(image, u, settings)
            assert apart(result[~doubtful], expected[~doubtful]) < 3 * CLOSE


def test_simsiam_and_vicreg_are_settings() -> None:
    same = SIMSIAM[0]
    assert SIMSIAM[1] == same
    assert (same.area, same.blur, same.solarize) == ((0.2, 1.0), 0.5, 0.0)
    assert (same.brightness, same.contrast, same.saturation, same.hue) == (0.4, 0.4, 0.4, 0.1)
    assert (same.jitter, same.grayscale, same.flip) == (0.8, 0.2, 0.5)
    assert [(view.area, view.blur, view.solarize) for view in VICREG] == [
        ((0.08, 1.0), 1.0, 0.0),
        ((0.08, 1.0), 0.1, 0.2),
    ]


def test_the_defaults_are_those_of_a_config_without_what_its_views_differ_in() -> None:
    for view in build_augmentations(AugmentConfig(), size=32):
        assert replace(view, blur=0.0, solarize=0.0) == Augmentation(size=32)


@pytest.mark.parametrize(("size", "kernel"), [(8, 3), (32, 3), (96, 11), (224, 23)])
def test_the_blur_kernel_is_a_tenth_of_the_image(size: int, kernel: int) -> None:
    assert [view.blur_kernel for view in build_augmentations(AugmentConfig(), size)] == [kernel, kernel]


@pytest.mark.parametrize("channels", [1, 3])
def test_values_stay_in_range(channels: int) -> None:
    strong = Augmentation(16, jitter=1, brightness=0.9, contrast=0.9, saturation=0.9, hue=0.5, blur=0.5, solarize=0.5)
    result = strong(pixels(256, channels=channels), draws(256), Stream.VIEW_1)
    assert result.min() >= -1e-6
    assert result.max() <= 1 + 1e-6
    white = strong(torch.full((64, channels, 7, 13), 255, dtype=torch.uint8), draws(64), Stream.VIEW_2)
    assert white.isfinite().all()
    assert white.max() <= 1 + 1e-6


# What is drawn


def torchvision_boxes(count: int, height: int, width: int, area: tuple[float, float]) -> np.ndarray:
    torch.manual_seed(0)
    image = torch.empty(1, height, width)
    boxes = [RandomResizedCrop.get_params(image, list(area), [3 / 4, 4 / 3]) for _ in range(count)]
    return np.array(boxes, dtype=np.float64)


@pytest.mark.parametrize(("height", "width", "area"), [(160, 200, (0.08, 1.0)), (32, 32, (0.2, 1.0))])
def test_crops_are_distributed_as_torchvisions(height: int, width: int, area: tuple[float, float]) -> None:
    theirs = torchvision_boxes(4000, height, width, area)
    u = draws(20_000).uniform(Stream.VIEW_1, CROP_DRAWS)
    ours = crop_boxes(u, height, width, area, (3 / 4, 4 / 3)).double().numpy()
    top, left, h, w = ours.T
    assert (h >= 1).all() and (w >= 1).all() and (top >= 0).all() and (left >= 0).all()
    assert (top + h <= height).all() and (left + w <= width).all()
    measures = {
        "area": lambda b: b[:, 2] * b[:, 3],
        "aspect": lambda b: b[:, 3] / b[:, 2],
        "top": lambda b: b[:, 0] / np.maximum(height - b[:, 2], 1),
        "left": lambda b: b[:, 1] / np.maximum(width - b[:, 3], 1),
    }
    for name, measure in measures.items():
        assert stats.ks_2samp(measure(ours), measure(theirs)).pvalue > 1e-3, name
        edges = np.quantile(measure(theirs), np.linspace(0, 1, 9))
        shares = [np.histogram(measure(b), np.unique(edges))[0] / len(b) for b in (ours, theirs)]
        assert np.abs(shares[0] - shares[1]).max() < 0.03, name
    assert np.abs(np.corrcoef(ours.T) - np.corrcoef(theirs.T)).max() < 0.05


@pytest.mark.parametrize(
    ("height", "width", "area", "ratio"),
    [
        (10, 400, (0.9, 1.0), (3 / 4, 4 / 3)),
        (401, 7, (0.5, 1.0), (3 / 4, 4 / 3)),
        (1, 9, (0.9, 1.0), (3 / 4, 4 / 3)),
        (20, 20, (1.0, 1.0), (1.2, 1.3)),
        (21, 24, (2.0, 2.0), (3 / 4, 4 / 3)),  # the aspect is fine, and nothing fits: the whole image
    ],
)
def test_where_no_crop_fits_the_centre_is_torchvisions(
    height: int, width: int, area: tuple[float, float], ratio: tuple[float, float]
) -> None:
    expected = RandomResizedCrop.get_params(torch.empty(1, height, width), list(area), list(ratio))
    boxes = crop_boxes(draws(50).uniform(Stream.VIEW_1, CROP_DRAWS), height, width, area, ratio)
    assert boxes.tolist() == [list(expected)] * 50


@pytest.mark.parametrize("fitting", [0, 4, 9, None])
def test_the_first_of_ten_tries_that_fits_is_taken(fitting: int | None) -> None:
    """Ten areas, ten aspect ratios and two places, in this order: it is part of the run format."""
    areas = torch.full((10,), 0.99)  # of a square image, with an aspect ratio of 4/3: too wide
    places = [0.5, 0.25]
    if fitting is not None:
        areas[fitting], areas[fitting + 1 :] = 0.0, 0.1
    u = torch.cat([areas, torch.full((10,), 1.0), torch.tensor(places)]).unsqueeze(0)
    assert u.shape[1] == CROP_DRAWS
    top, left, h, w = crop_boxes(u, 100, 100, (0.12, 1.0), (3 / 4, 4 / 3))[0].tolist()
    if fitting is None:
        assert (top, left, h, w) == (0, 0, 100, 100)
    else:  # sqrt(1200 * 3/4) high and sqrt(1200 * 4/3) wide
        assert (top, left, h, w) == (int(0.5 * 71), int(0.25 * 61), 30, 40)


def test_each_image_has_its_own_parameters() -> None:
    same = pixels(1, 16, 16).expand(32, -1, -1, -1)
    for change in ({}, WHOLE | {"jitter": 1.0}, WHOLE | {"jitter": 0.0, "blur": 1.0, "flip": 0.0, "grayscale": 0.0}):
        views = Augmentation(size=16, **change)(same, draws(32), Stream.VIEW_1)
        assert len(views.flatten(1).unique(dim=0)) == 32


COUNT = 5000


def share(changed: Tensor, probability: float) -> bool:
    """Whether this share of changes is believable: within four standard deviations."""
    slack = 4 * math.sqrt(probability * (1 - probability) / len(changed))
    return abs(float(changed.float().mean()) - probability) <= slack


@pytest.mark.parametrize("name", ["flip", "jitter", "grayscale", "blur", "solarize"])
@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 0.8, 1.0])
def test_probabilities(name: str, probability: float) -> None:
    images = pixels(1, 8, 8, seed=5).expand(COUNT, -1, -1, -1)
    settings = Augmentation(size=8, **(NEUTRAL | {"blur_sigma": (0.5, 2.0), name: probability}), **WHOLE)
    result = settings(images, draws(COUNT), Stream.VIEW_2)
    changed = (result != unit(images)).flatten(1).any(1)
    assert share(changed, probability)
    if name == "flip":
        assert torch.equal(result[changed], unit(images[changed]).flip(-1))


def test_strengths_are_uniform() -> None:
    half = torch.full((COUNT, 1, 4, 4), 128, dtype=torch.uint8)
    bright = Augmentation(size=4, **(NEUTRAL | {"jitter": 1.0}), **WHOLE, brightness=0.4, contrast=0.0)
    factors = bright(half, draws(COUNT), Stream.VIEW_1)[:, 0, 0, 0] / (128 / 255)
    assert stats.kstest(factors.numpy(), stats.uniform(0.6, 0.8).cdf).pvalue > 1e-3
    very = Augmentation(size=4, **(NEUTRAL | {"jitter": 1.0}), **WHOLE, brightness=1.5, contrast=0.0)
    factors = very(half // 8, draws(COUNT), Stream.VIEW_1)[:, 0, 0, 0] / (16 / 255)
    assert stats.kstest(factors.numpy(), stats.uniform(0.0, 2.5).cdf).pvalue > 1e-3  # never below black


def test_every_order_of_the_jitter_is_as_likely() -> None:
    u = draws(COUNT).uniform(Stream.VIEW_1, CROP_DRAWS + 14)[:, CROP_DRAWS + 6 : CROP_DRAWS + 10]
    _, counts = u.argsort(1).unique(dim=0, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_views_are_independent() -> None:
    one, two = (draws(COUNT).uniform(stream, CROP_DRAWS + 14).numpy() for stream in (Stream.VIEW_1, Stream.VIEW_2))
    correlation = np.corrcoef(one.T, two.T)
    off_diagonal = correlation[~np.eye(len(correlation), dtype=bool)]
    assert np.abs(off_diagonal).max() < 5 / math.sqrt(COUNT)
    images = pixels(1, 8, 8).expand(COUNT, -1, -1, -1)
    flip = Augmentation(size=8, **(NEUTRAL | {"flip": 0.5}), **WHOLE)
    flipped = [(flip(images, draws(COUNT), s) != unit(images)).flatten(1).any(1) for s in (0, 1)]
    assert share(flipped[0] & flipped[1], 0.25)
    assert share(flipped[0] == flipped[1], 0.5)


def test_a_pure_function_of_seed_step_and_position() -> None:
    images, settings = pixels(12), Augmentation(size=16, blur=0.5, solarize=0.2)
    torch.manual_seed(0)
    whole = settings(images, draws(12, step=5, seed=1), Stream.VIEW_1)
    torch.manual_seed(1)
    assert torch.equal(settings(images, draws(12, step=5, seed=1), Stream.VIEW_1), whole)
    step = torch.tensor(5)
    assert torch.equal(settings(images, Draws(1, step, torch.arange(12)), Stream.VIEW_1), whole)
    for other in (draws(12, step=6, seed=1), draws(12, step=5, seed=2), draws(12, step=5, seed=1, first=12)):
        assert not torch.equal(settings(images, other, Stream.VIEW_1), whole)


def test_the_rest_of_the_batch_does_not_matter() -> None:
    images, settings = pixels(12), Augmentation(size=16, blur=0.5, solarize=0.2)
    whole = settings(images, draws(12, step=5), Stream.VIEW_1)
    for chosen in ([3], [7, 2, 11], list(range(6, 12))):
        alone = settings(images[chosen], Draws(0, 5, torch.tensor(chosen)), Stream.VIEW_1)
        assert apart(alone, whole[chosen]) < 1e-6


# Crops that were cut when the image was decoded


def test_cropped_images_get_everything_but_the_crop() -> None:
    images = pixels(30, 16, 16)
    for settings in (*BYOL, *SIMSIAM):
        uncropped = Augmentation(**vars(settings) | WHOLE)  # the same draws, and a crop of everything
        expected = uncropped(images, draws(30, step=2), Stream.VIEW_2)
        assert torch.equal(settings(images, draws(30, step=2), Stream.VIEW_2, cropped=True), expected)


def test_cropping_at_decoding_is_cropping_on_the_device() -> None:
    images, settings, numbers = pixels(30), Augmentation(size=16, blur=0.5), draws(30, step=2)
    boxes = crop_boxes(numbers.uniform(Stream.VIEW_1, CROP_DRAWS), 24, 20, settings.area, settings.ratio)
    cut = [
        levels(pil(image).crop((left, top, left + w, top + h)).resize((16, 16), Image.Resampling.BILINEAR)).byte()
        for image, (top, left, h, w) in zip(images, boxes.tolist(), strict=True)
    ]
    late = settings(images, numbers, Stream.VIEW_1) * 255
    early = settings(torch.stack(cut), numbers, Stream.VIEW_1, cropped=True) * 255
    assert apart(early, late) < 6  # a level or two of rounding, stretched by the jitter
    assert (early - late).abs().mean() < 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_pixels_that_are_not_bytes_are_refused(dtype):
    """Floats may go up to 1 or to 255, and one of these would be nearly black."""
    with pytest.raises(ValueError, match=f"images must be uint8, 0 to 255, .* got {dtype}"):
        Augmentation(size=8)(torch.ones(2, 3, 8, 8, dtype=dtype), draws(2), Stream.VIEW_1)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"flip": 2.0}, "flip is a probability"), ({"blur": -0.1}, "blur is a prob"), ({"blur_kernel": 4}, "must be odd")],
)
def test_what_no_augmentation_can_be(options, words):
    with pytest.raises(ValueError, match=words):
        Augmentation(size=8, **options)


@pytest.mark.parametrize("shape", [(2, 2, 8, 8), (2, 4, 8, 8), (3, 8, 8)])
def test_images_of_other_channels_are_refused_in_words(shape):
    draws = Draws(0, 0, torch.arange(shape[0]))
    with pytest.raises(ValueError, match="with 1 or 3 channels"):
        Augmentation(size=8)(torch.zeros(shape, dtype=torch.uint8), draws, 0)
