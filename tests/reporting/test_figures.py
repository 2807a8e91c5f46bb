"""Pictures are written whole or not at all, and a place where they cannot be is a mistake with words for it."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from vje.errors import UserError
from vje.reporting.compare import save_comparison
from vje.reporting.curves import save_curves
from vje.reporting.figures import save_figure
from vje.reporting.gallery import save_gallery
from vje.reporting.geometry import save_geometry
from vje.reporting.ood import save_densities, save_roc
from vje.reporting.panels import save_panels, save_scalar

SCORES = np.arange(6.0)
PLACES = np.zeros((4, 2), np.float32)
STATISTICS = dict.fromkeys(("variance", "nll", "kl", "anisotropy"), np.arange(4, dtype=np.float32))
SAVERS = {
    "compare": lambda file: save_comparison(file, []),
    "curves": lambda file: save_curves(file, {"run": [{"epoch": 1, "loss": 2.0}]}),
    "gallery": lambda file: save_gallery(file, [("row", [np.zeros((1, 4, 4), np.uint8)], ["one"])]),
    "geometry": lambda file: save_geometry(file, PLACES, np.arange(4) % 2, STATISTICS),
    "ood roc": lambda file: save_roc(file, {"nll": SCORES}, {"other": {"nll": SCORES + 1}}),
    "ood densities": lambda file: save_densities(file, SCORES, {"other": SCORES + 1}),
    "panels": lambda file: save_panels(file, ["a"], ["b"], {}),
    "scalar": save_scalar,
}


@pytest.mark.parametrize("name", SAVERS)
def test_a_place_that_cannot_be_written_to(name, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "taken.png").mkdir()
    for place in (tmp_path / "file" / "x.png", tmp_path / "taken.png"):
        with pytest.raises(UserError, match=f"cannot write {place}"):
            SAVERS[name](place)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "taken.png"]


@pytest.mark.parametrize("name", SAVERS)
def test_a_picture_in_a_folder_that_is_made_for_it(name, tmp_path):
    SAVERS[name](tmp_path / "new" / "x.png")
    with Image.open(tmp_path / "new" / "x.png") as picture:
        assert picture.format == "PNG"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["x.png"]


@pytest.mark.parametrize(("name", "start"), [("a.pdf", b"%PDF"), ("a.JPG", b"\xff\xd8"), ("a", b"\x89PNG")])
def test_the_ending_names_the_format(name, start, tmp_path):
    save_figure(Figure(figsize=(1, 1)), tmp_path / name, 30)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_the_old_picture_stays_until_the_new_one_is_whole(tmp_path, monkeypatch):
    file = tmp_path / "a.png"
    file.write_bytes(b"old")

    def fail(*_, **__):
        raise MemoryError

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(MemoryError):
        save_scalar(file)
    assert file.read_bytes() == b"old"
