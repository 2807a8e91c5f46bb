from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def picture(tmp_path: Path) -> Callable[..., Path]:
    """Writes a small image of random pixels under tmp_path, always the same for the same name."""

    def write(name: str, width: int = 12, height: int = 10, mode: str = "RGB") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shape = (height, width, 3) if mode == "RGB" else (height, width)
        pixels = np.random.default_rng(sum(name.encode())).integers(0, 256, shape, dtype=np.uint8)
        Image.fromarray(pixels).save(path)
        return path

    return write
