import io
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vje.data.decode import UnreadableImage, is_grey, read_image


def saved(image: Image.Image, path: Path, **options: object) -> Path:
    image.save(path, **options)  # type: ignore[arg-type]
    return path


def pixels(path: Path, channels: int) -> Any:
    array = np.asarray(read_image(path, channels))
    assert array.dtype == np.uint8
    return array.reshape(-1, 3).tolist() if channels == 3 else array.reshape(-1).tolist()


def from_values(values: list[list[int]], mode: str) -> Image.Image:
    image = Image.new(mode, (len(values), 1))
    image.putdata([tuple(value) for value in values])
    return image


@pytest.mark.parametrize(
    ("image", "suffix", "rgb"),
    [
        (from_values([[10, 20, 30], [200, 100, 0]], "RGB"), "png", [[10, 20, 30], [200, 100, 0]]),
        (
            from_values([[10, 20, 30, 255], [9, 9, 9, 0], [0, 0, 0, 51]], "RGBA"),
            "png",
            [[10, 20, 30], [255] * 3, [204] * 3],
        ),
        (from_values([[100, 255], [100, 0]], "LA"), "png", [[100] * 3, [255] * 3]),
        (
            from_values([[0, 255, 255, 0], [0, 0, 0, 255], [0, 0, 0, 0]], "CMYK"),
            "tif",
            [[255, 0, 0], [0] * 3, [255] * 3],
        ),
    ],
)
def test_modes_to_rgb(image: Image.Image, suffix: str, rgb: list[list[int]], tmp_path: Path) -> None:
    assert pixels(saved(image, tmp_path / f"x.{suffix}"), 3) == rgb


def test_grey_bilevel_and_palette(tmp_path: Path) -> None:
    grey = Image.fromarray(np.array([[0, 7, 255]], np.uint8))
    assert pixels(saved(grey, tmp_path / "grey.png"), 1) == [0, 7, 255]
    assert pixels(tmp_path / "grey.png", 3) == [[0] * 3, [7] * 3, [255] * 3]
    bilevel = Image.fromarray(np.array([[0, 255]], np.uint8)).convert("1")
    assert pixels(saved(bilevel, tmp_path / "one.png"), 1) == [0, 255]
    palette = Image.new("P", (2, 1))
    palette.putpalette([255, 0, 0, 0, 0, 255])
    palette.putdata([0, 1])
    assert pixels(saved(palette, tmp_path / "p.png"), 3) == [[255, 0, 0], [0, 0, 255]]
    assert pixels(saved(palette, tmp_path / "pt.png", transparency=0), 3) == [[255, 255, 255], [0, 0, 255]]
    assert pixels(tmp_path / "p.png", 1) == [76, 29]


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_are_scaled_not_clipped(suffix: str, tmp_path: Path) -> None:
    image = Image.fromarray(np.array([[0, 257, 30000, 65535]], np.uint16))
    assert pixels(saved(image, tmp_path / f"deep.{suffix}"), 1) == [0, 1, 117, 255]


def test_thirty_two_bits_and_floats(tmp_path: Path) -> None:
    def tif(values: list[list[float]], kind: type) -> Any:
        return pixels(saved(Image.fromarray(np.array(values, kind)), tmp_path / "x.tif"), 1)

    assert tif([[0, 100, 255]], np.int32) == [0, 100, 255]
    assert tif([[0, 257, 65535]], np.int32) == [0, 1, 255]
    assert tif([[0, 128, 256]], np.int32) == [0, 0, 1]  # more than a byte holds: of 65535
    assert tif([[-1000, 0, 1000]], np.int32) == [0, 128, 255]
    assert tif([[0.0, 0.5, 1.0]], np.float32) == [0, 128, 255]
    assert tif([[0.0, float("nan"), 200.0]], np.float32) == [0, 0, 200]


def test_exif_orientation(tmp_path: Path) -> None:
    image = from_values([[255, 0, 0], [0, 0, 255]], "RGB")
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned a quarter to the right: what was left is on top
    path = saved(image, tmp_path / "x.png", exif=exif)
    upright = read_image(path, 3)
    assert upright.size == (1, 2)
    assert pixels(path, 3) == [[255, 0, 0], [0, 0, 255]]


def test_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (2, 2), color) for color in ("red", "blue")]
    path = saved(frames[0], tmp_path / "x.gif", save_all=True, append_images=frames[1:])
    assert pixels(path, 3) == [[255, 0, 0]] * 4


def test_cmyk_jpeg_and_open_files(tmp_path: Path) -> None:
    path = saved(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), tmp_path / "x.jpg", quality=95)
    with path.open("rb") as file:
        array = np.asarray(read_image(file, 3)).astype(int)
    assert np.abs(array - [255, 0, 0]).max() <= 4


def test_draft_keeps_enough_pixels(tmp_path: Path) -> None:
    path = saved(Image.new("RGB", (640, 320), (50, 100, 150)), tmp_path / "x.jpg")
    assert read_image(path, 3).size == (640, 320)
    assert read_image(path, 3, draft=80).size == (160, 80)
    assert read_image(path, 3, draft=100).size == (320, 160)
    assert read_image(path, 1, draft=80).mode == "L"


def test_unreadable_files_say_why(tmp_path: Path) -> None:
    whole = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(whole, "PNG")
    contents = {
        "empty.png": (b"", "empty"),
        "text.jpg": (b"not an image at all", "not an image"),
        "cut.png": (whole.getvalue()[:500], "truncated"),
        "photo.heic": (b"\0\0\0\x18ftypheic\0\0\0\0", "pillow-heif" if not has_heif() else ""),
    }
    for name, (content, reason) in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UnreadableImage) as caught:
            read_image(tmp_path / name, 3)
        assert name in str(caught.value)
        assert reason in caught.value.reason
    with pytest.raises(UnreadableImage, match="no such file"):
        read_image(tmp_path / "missing.png", 3)


def has_heif() -> bool:
    try:
        import pillow_heif  # noqa: F401
    except ImportError:
        return False
    return True


def test_decompression_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(Image.new("L", (100, 100)), tmp_path / "x.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(UnreadableImage, match="2,000 pixels"):
        read_image(path, 3)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_exif_is_no_reason_to_refuse(tmp_path: Path) -> None:
    path = saved(Image.new("RGB", (2, 1), "red"), tmp_path / "x.png", exif=b"Exif\0\0MM\0*nonsense")
    assert pixels(path, 3) == [[255, 0, 0]] * 2


def test_the_error_survives_another_process() -> None:
    error = pickle.loads(pickle.dumps(UnreadableImage("a.png", "the file is empty")))
    assert str(error) == "cannot read a.png: the file is empty"
    assert error.reason == "the file is empty"


def test_is_grey(tmp_path: Path) -> None:
    assert is_grey(saved(Image.new("L", (2, 2)), tmp_path / "l.png")) is True
    assert is_grey(saved(Image.new("RGB", (2, 2)), tmp_path / "c.png")) is False
    (tmp_path / "x.png").write_text("x")
    assert is_grey(tmp_path / "x.png") is None


@pytest.mark.parametrize("module", ["decode", "sources", "folders", "labels", "arrays", "registry", "splits"])
def test_no_torch_is_loaded(module: str) -> None:
    code = f"import sys, vje.data.{module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.jpg")
    with pytest.raises(UnreadableImage, match="not a file but a pipe, a socket or a device"):
        read_image(tmp_path / "a.jpg", 3)
    assert is_grey(tmp_path / "a.jpg") is None


@pytest.mark.parametrize(("value", "kind"), [(-1.0, np.float32), (70000, np.int32)])
def test_one_value_everywhere_is_an_image_too(value: float, kind: type, tmp_path: Path) -> None:
    """Out of the usual ranges, values are stretched from the least to the most; here these are the same."""
    assert pixels(saved(Image.fromarray(np.full((1, 3), value, kind)), tmp_path / "x.tif"), 1) == [0, 0, 0]
