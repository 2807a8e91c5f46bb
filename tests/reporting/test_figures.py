"""Pictures are written whole or not at all, and a place where they cannot be is a mistake with words for it."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from vje.errors import UserError
from vje.recipes import load_recipe
from vje.reporting.compare import Group, Run, save_comparison
from vje.reporting.figures import drawable, save_figure, save_gallery
from vje.reporting.geometry import save_geometry, save_training
from vje.reporting.ood import ood_curves, save_densities, save_roc
from vje.reporting.panels import save_panels, save_scalar
from vje.runs import RunFolder

SCORES = np.arange(6.0)
PLACES = np.zeros((4, 2), np.float32)
STATISTICS = dict.fromkeys(("variance", "nll", "kl", "anisotropy"), np.arange(4, dtype=np.float32))


def curves_of(inside, outside):
    """One run's NLL as ``ood-curves.json`` has it."""
    found = ood_curves({"nll": inside}, {name: {"nll": x} for name, x in outside.items()}, ["nll"], "nll")
    return found | {"titles": {"nll": "the NLL"}}


SAVERS = {
    "compare": lambda file: save_comparison(file, []),
    "gallery": lambda file: save_gallery(file, [("row", [np.zeros((1, 4, 4), np.uint8)], ["one"])]),
    "geometry": lambda file: save_geometry(file, PLACES, np.arange(4) % 2, STATISTICS),
    "ood roc": lambda file: save_roc(file, [curves_of(SCORES, {"other": SCORES + 1})], ["nll"]),
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


@pytest.fixture
def drawn(monkeypatch):
    """The figures that would have been written, by the name of the module that draws them."""
    figures = {}
    for module in ("geometry", "ood", "panels"):
        keep = lambda figure, *_, module=module: figures.update({module: figure})  # noqa: E731
        monkeypatch.setattr(f"vje.reporting.{module}.save_figure", keep)
    return figures


def points_of(line):
    return [tuple(map(float, point)) for point in line.get_xydata()]


def band_of(axis):
    """(x, lowest, highest) of the band of an axis."""
    (band,) = axis.collections
    corners = band.get_paths()[0].vertices
    at = {x: corners[corners[:, 0] == x, 1] for x in np.unique(corners[:, 0])}
    return np.array([(x, heights.min(), heights.max()) for x, heights in at.items()])


def test_roc_curves_have_flagged_images_across_and_caught_ones_up(drawn, tmp_path):
    found = curves_of(np.arange(4.0), {"other": np.array([2.5, 4.0])})
    save_roc(tmp_path / "x.png", [found], ["nll", "none such"])
    line, chance = drawn["ood"].axes[0].lines
    assert points_of(line) == [(0, 0), (0, 0.5), (0.25, 0.5), (0.25, 1), (1, 1)]  # 4, then 3, then 2.5, then all
    assert line.get_label() == "the NLL 87.5"  # 7 of 8 pairs are in order
    assert points_of(chance) == [(0, 0), (1, 1)]


def test_roc_curves_of_several_runs_are_their_mean_in_a_band_over_the_sets_that_all_have(drawn, tmp_path):
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(size=2000), rng.normal(1, 1, 2000)
    one = curves_of(inside, {"a": outside, "b": outside})
    other = curves_of(inside, {"a": outside + 1, "c": outside})
    save_roc(tmp_path / "x.png", [one, other], ["nll"])
    (axis,) = [axis for axis in drawn["ood"].axes if axis.axison]
    assert axis.get_title() == "a"
    x, y = axis.lines[0].get_data()
    runs = []
    for shift in (0, 1):  # the share of outsiders above the score that so many insiders are above
        limits = np.quantile(inside, 1 - x[1:-1])
        runs.append([(outside + shift > limit).mean() for limit in limits])
    np.testing.assert_allclose(y[1:-1], np.mean(runs, axis=0), atol=0.02)
    corners = axis.collections[0].get_paths()[0].vertices
    middle = np.argmin(np.abs(x - 0.2))
    band = corners[np.isclose(corners[:, 0], x[middle]), 1]
    spread = np.std([run[middle - 1] for run in runs], ddof=1)
    assert band.max() - band.min() == pytest.approx(2 * spread, abs=0.03)
    areas = [100 * np.mean(outside[:, None] + shift > inside) for shift in (0, 1)]
    assert axis.lines[0].get_label() == f"the NLL {np.mean(areas):.1f} ± {np.std(areas, ddof=1):.1f}"
    save_roc(tmp_path / "x.png", [one, curves_of(inside, {"c": outside})], ["nll"])  # which share no set
    assert not any(axis.axison for axis in drawn["ood"].axes)


def test_densities_are_drawn_over_the_same_bins_each_of_area_one(drawn, tmp_path):
    rng = np.random.default_rng(0)
    save_densities(tmp_path / "x.png", rng.uniform(0, 1, 500), {"other": rng.uniform(3, 4, 200)})
    inside, outside = (steps.get_data() for steps in drawn["ood"].axes[0].patches)
    assert np.array_equal(inside.edges, outside.edges)
    for steps, low, high in ((inside, 0, 1), (outside, 3, 4)):
        assert (np.diff(steps.edges) * steps.values).sum() == pytest.approx(
            1, abs=0.011
        )  # two of 200 are beyond the ends
        centres = (steps.edges[1:] + steps.edges[:-1])[steps.values > 0] / 2
        assert low - 0.05 < min(centres) < max(centres) < high + 0.05


def test_compared_runs_are_a_mean_in_a_band_of_one_deviation(drawn, tmp_path):
    curves = [[(1, 70.0), (2, 80.0), (3, 99.0)], [(1, 74.0), (2, 86.0)]]  # one run is behind
    runs = [Run(RunFolder(tmp_path), load_recipe("digits"), {}, curve) for curve in curves]
    save_comparison(tmp_path / "x.png", [Group("digits", runs)])
    (axis,) = drawn["panels"].axes
    assert points_of(axis.lines[0]) == [(1, 72), (2, 83)]
    assert axis.lines[0].get_label() == "digits (83.0)"
    expected = np.array([(1, 72 - 8**0.5, 72 + 8**0.5), (2, 83 - 18**0.5, 83 + 18**0.5)])
    assert band_of(axis) == pytest.approx(expected)


def test_a_label_says_what_a_run_reached_last_and_whether_that_is_all(drawn, tmp_path):
    states = {"a": {"done": 16}, "b": {"done": 16, "diverged": 3}, "c": {}}
    folder, config, curve = RunFolder(tmp_path), load_recipe("digits"), [(9, 70.0), (16, 60.0)]
    groups = [Group(name, [Run(folder, config, {}, curve, **state)]) for name, state in states.items()]
    short, unlabelled = ((name, [Run(folder, config, {}, points)]) for name, points in (("d", curve[:1]), ("e", [])))
    save_comparison(tmp_path / "x.png", [*groups, Group(*short), Group(*unlabelled)])
    lines = drawn["panels"].axes[0].lines
    assert [line.get_label() for line in lines] == [
        "d (70.0)",
        "a (60.0, unfinished)",
        "b (60.0, diverged)",
        "c (60.0)",
    ]
    assert points_of(lines[1]) == [(9, 70), (16, 60)]
    assert lines[0].get_marker() == "."  # a line of one point would not be seen
    save_comparison(tmp_path / "x.png", [])
    assert drawn["panels"].axes[0].get_legend() is None


def test_panels_have_lines_in_bands_of_one_deviation(drawn, tmp_path):
    curves = {("KL", "digits"): {"all": [(1, 5.0, 0.5), (2, 7.0, 1.5)]}}
    save_panels(tmp_path / "x.png", ["digits"], ["variance", "KL"], curves)
    empty, axis = drawn["panels"].axes
    assert empty.get_ylabel() == "variance" and not empty.lines
    assert points_of(axis.lines[0]) == [(1, 5), (2, 7)]
    assert band_of(axis) == pytest.approx(np.array([(1, 4.5, 5.5), (2, 5.5, 8.5)]))


def test_a_statistic_is_coloured_between_its_extreme_fiftieths(drawn, tmp_path):
    places = np.stack([np.arange(101), np.arange(101) * 2], axis=1).astype(np.float32)
    values = dict.fromkeys(STATISTICS, np.arange(101, dtype=np.float32))
    save_geometry(tmp_path / "x.png", places, np.arange(101) % 2, values)
    by_class, *others = (axis for axis in drawn["geometry"].axes if axis.get_title())
    assert [np.asarray(points.get_offsets()).tolist() for points in by_class.collections] == [
        places[::2].tolist(),
        places[1::2].tolist(),
    ]
    for axis in others:
        (points,) = axis.collections
        assert np.asarray(points.get_offsets()).tolist() == places.tolist()
        assert points.get_clim() == pytest.approx((2, 98))


def legend_of(axis):
    return [text.get_text() for text in axis.get_legend().get_texts()]


def test_ood_figures_have_a_panel_a_set_that_says_what_it_shows(drawn, tmp_path):
    sets = {name: SCORES + shift for shift, name in enumerate("abcd")}
    save_roc(tmp_path / "x.png", [curves_of(SCORES, sets)], ["nll"])
    axes = drawn["ood"].axes
    assert [axis.get_title() for axis in axes if axis.axison] == list("abcd")  # and not the two that are left over
    assert {(axis.get_xlabel(), axis.get_ylabel()) for axis in axes[:4]} == {("ID images flagged", "OOD images caught")}
    save_densities(tmp_path / "x.png", SCORES, sets, "my score")
    axes = [axis for axis in drawn["ood"].axes if axis.axison]
    assert [legend_of(axis) for axis in axes] == [["in-distribution", name] for name in "abcd"]
    assert {axis.get_xlabel() for axis in axes} == {"my score"}


def test_densities_leave_out_no_more_than_the_last_few(drawn, tmp_path):
    scores = np.linspace(0, 1, 1001)
    save_densities(tmp_path / "x.png", scores, {"other": scores})
    edges = drawn["ood"].axes[0].patches[0].get_data().edges
    assert (edges[0], edges[-1]) == pytest.approx((0.002, 0.998))


def test_densities_of_scores_that_are_all_the_same(drawn, tmp_path):
    save_densities(tmp_path / "x.png", np.ones(5), {"other": np.ones(3)})
    steps = drawn["ood"].axes[0].patches[0].get_data()
    assert (np.diff(steps.edges) * steps.values).sum() == pytest.approx(1)


def test_a_map_of_many_classes_has_them_all_and_a_legend_of_twenty(drawn, tmp_path):
    labels = np.repeat(np.arange(25) * 40, 2)  # numbers far apart
    places, some = np.arange(100.0).reshape(50, 2), np.arange(50, dtype=np.float32)
    save_geometry(tmp_path / "x.png", places, labels, dict.fromkeys(STATISTICS, some))
    axis = drawn["geometry"].axes[0]
    assert sorted(np.concatenate([dots.get_offsets() for dots in axis.collections])[:, 0]) == list(places[:, 0])
    assert legend_of(axis) == [str(number) for number in np.unique(labels)[:20]]
    colours = [tuple(dots.get_facecolor()[0]) for dots in axis.collections]
    assert len(set(colours[:10])) == 10 and colours[:10] == colours[10:20]


def test_each_panel_is_at_its_row_and_column(drawn, tmp_path):
    heights = {(strip, column): 10.0 * i + j for i, strip in enumerate("st") for j, column in enumerate("cde")}
    curves = {panel: {"line": [(1, height, 0.0)]} for panel, height in heights.items()}
    save_panels(tmp_path / "x.png", list("cde"), list("st"), curves)
    axes = drawn["panels"].axes
    found = {(axis.get_ylabel(), axis.get_title()): axis.lines[0].get_ydata()[0] for axis in axes}
    assert found == heights and [(axis.get_ylabel(), axis.get_title()) for axis in axes] == list(heights)  # row by row
    assert legend_of(axes[0]) == ["line"]
    save_panels(tmp_path / "x.png", ["c"], list("st"), curves)
    assert [axis.get_subplotspec().colspan.start for axis in drawn["panels"].axes] == [0, 1]  # abreast


def test_the_map_of_geometry_names_classes_and_colours_by_the_statistic_it_names(drawn, tmp_path):
    values = {name: np.arange(4, dtype=np.float32) * 10**i for i, name in enumerate(STATISTICS)}
    save_geometry(tmp_path / "x.png", PLACES, np.array([2, 0, 2, 0]), values, ["cat", "dog", "ship"])
    by_class, *others = (axis for axis in drawn["geometry"].axes if axis.get_title())
    assert legend_of(by_class) == ["cat", "ship"]
    assert len({tuple(points.get_facecolor()[0]) for points in by_class.collections}) == 2
    shown = {axis.get_title(): np.asarray(axis.collections[0].get_array()).tolist() for axis in others}
    titles = ("posterior variance", "NLL", "KL (nats)", "anisotropy of the variance")
    assert shown == {title: values[name].tolist() for title, name in zip(titles, STATISTICS, strict=True)}


def test_the_scalar_figure_has_density_and_gradient_each_under_its_name(drawn, tmp_path):
    save_scalar(tmp_path / "x.png", [1.0, np.inf], reach=3.0)
    axes = {axis.get_title(): axis for axis in drawn["panels"].axes}
    at_three = {title: [line.get_ydata()[-1] for line in axis.lines] for title, axis in axes.items()}
    assert at_three["negative log-density"] == pytest.approx([np.log(10), 4.5])  # log(1 + r^2), r^2 / 2
    assert at_three["size of the gradient"] == pytest.approx([0.6, 3])  # 2 r / (1 + r^2), r
    assert [legend_of(axis) for axis in axes.values()] == [["nu = 1", "Gaussian"]] * 2


def test_a_dollar_in_a_runs_name_begins_no_formula(drawn, tmp_path):
    save_training(tmp_path / "x.png", {"epoch": [1, 2], "kl": [5.0, 4.0]}, "a$b$", "standard")
    (axis,) = drawn["panels"].axes
    assert axis.get_title() == r"a\$b\$" and axis.get_ylabel() == "KL (nats)"
    assert legend_of(axis) == ["standard likelihood"] and points_of(axis.lines[0]) == [(1, 5), (2, 4)]


@pytest.mark.filterwarnings("error")
def test_a_caption_may_hold_what_no_font_has_and_what_would_begin_a_formula(tmp_path):
    captions = ["\u732b.jpg", drawable("$\\foo$.jpg"), drawable("\udcff.jpg")]
    for file in (tmp_path / "x.png", tmp_path / "x.pdf"):
        save_gallery(file, [("row", [np.zeros((1, 4, 4), np.uint8)] * 3, captions)])
        assert file.stat().st_size > 1000


def test_names_of_classes_sets_and_groups_are_drawn_as_they_are(drawn, tmp_path):
    names = ["$\\foo$", "\udcff\n", "_one"]
    shown = [r"\$\foo\$", "\ufffd\ufffd", "\u200b_one"]
    save_geometry(tmp_path / "x.png", PLACES, np.arange(4) % 3, STATISTICS, names)
    assert legend_of(drawn["geometry"].axes[0]) == shown
    save_roc(tmp_path / "x.png", [curves_of(SCORES, dict.fromkeys(names, SCORES + 1))], ["nll"])
    assert [axis.get_title() for axis in drawn["ood"].axes] == shown
    save_densities(tmp_path / "x.png", SCORES, dict.fromkeys(names, SCORES + 1))
    assert [legend_of(axis)[1] for axis in drawn["ood"].axes] == shown
    line = [(1, 10.0, 0.0), (2, 20.0, 0.0)]
    save_panels(tmp_path / "x.png", [""], [""], {("", ""): dict.fromkeys(("a$b$", "_one"), line)})
    assert legend_of(drawn["panels"].axes[0]) == [r"a\$b\$", "\u200b_one"]


def test_percentages_end_at_a_hundred(drawn, tmp_path):
    points = [(1, 90.0, 1.0), (2, 99.9, 0.5), (3, 100.0, 0.0)]
    strips = ["k-NN accuracy (%)", "top-1 (%)", "KL"]
    curves = {(strips[0], ""): {"a": points}, (strips[1], ""): {"a": points[:1]}, ("KL", ""): {"a": points}}
    save_panels(tmp_path / "x.png", [""], strips, curves)
    reached, below, other = (axis.get_ylim()[1] for axis in drawn["panels"].axes)
    assert reached == 100 and 91 <= below < 92 and other > 100.4


def test_every_line_of_many_looks_different_and_none_lies_under_the_legend(drawn, tmp_path):
    points = [(1, 10.0, 0.0), (2, 20.0, 0.0)]
    save_panels(tmp_path / "x.png", [""], ["k-NN"], {("k-NN", ""): {f"run {i}": points for i in range(25)}})
    (axis,) = drawn["panels"].axes
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in axis.lines}
    assert len(looks) == 25
    drawn["panels"].draw_without_rendering()
    assert axis.get_legend().get_window_extent().x0 >= axis.get_window_extent().x1
    assert {float(place).is_integer() for place in axis.get_xticks()} == {True}


def test_compared_runs_stand_in_the_legend_as_they_end(drawn, tmp_path):
    runs = {
        name: Run(RunFolder(tmp_path), load_recipe("digits"), {}, [(1, x)])
        for name, x in zip("abc", (5, 9, 7), strict=True)
    }
    save_comparison(tmp_path / "x.png", [Group(name, [run]) for name, run in runs.items()])
    assert legend_of(drawn["panels"].axes[0]) == ["b (9.0)", "c (7.0)", "a (5.0)"]
