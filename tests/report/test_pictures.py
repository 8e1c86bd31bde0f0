"""Pictures: there, whole, labelled, told apart without colour, and large enough for a phone."""

import io

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text

from fedamp.base.numbers import at_most
from fedamp.report import style
from fedamp.report.pictures import comparison_pictures, plot_run, run_pictures
from fedamp.runs.run import read_models, read_run


def words(figure: Figure) -> str:
    return " | ".join(text.get_text() for text in figure.findobj(Text) if text.get_visible())


def test_a_run_leaves_its_pictures(runs, tmp_path):
    assert [file.name for file in (runs["hidden"] / "plots").iterdir()] == ["rounds.png"]
    for file in (runs["hidden"] / "plots").iterdir():
        assert matplotlib.image.imread(file).std() > 0.05  # something is drawn on it
    assert plot_run(tmp_path) == []  # before the first round
    assert not (tmp_path / "plots").exists()


def test_pictures_say_what_is_protected_charged_and_allowed(runs):
    run = read_run(runs["hidden"])
    for picture in run_pictures(run).values():
        text = words(picture)
        assert "protected: one client of 60, δ = 1e-5" in text
        assert f"charged: {at_most(run.epsilon)}" in text
        assert at_most(run.unamplified_epsilon) in text
        assert "without amplification" in text
        assert "budget: 12" in text


def test_a_run_without_amplification_has_one_curve_and_one_without_privacy_none(runs):
    for picture in run_pictures(read_run(runs["plain"])).values():
        assert "without amplification" not in words(picture)
    (picture,) = run_pictures(read_run(runs["open"])).values()
    assert "epsilon is infinite" in words(picture)
    assert comparison_pictures([read_run(runs["open"])]).keys() == {"rounds"}


def test_comparisons_name_every_run_in_every_picture(runs):
    pictures = comparison_pictures(read_models(list(runs.values())))
    assert pictures.keys() == {"rounds", "accuracy-epsilon"}
    for picture in pictures.values():
        assert all(name in words(picture) for name in runs)


def test_a_merged_model_is_one_more_point(runs, merged):
    models = read_models([runs["hidden"], merged])
    pictures = comparison_pictures(models)
    assert "selected, merged" in words(pictures["accuracy-epsilon"])
    assert "selected" not in words(pictures["rounds"])  # it has none
    points = [
        line.get_xydata()[0].tolist()
        for line in pictures["accuracy-epsilon"].axes[0].lines
        if len(line.get_xdata()) == 1 and line.get_markerfacecolor() != "white"
    ]
    expected = [[model.epsilon, 100 * model.score[1]] for model in models]
    np.testing.assert_allclose(sorted(points), sorted(expected))
    assert comparison_pictures([models[1], models[1]]).keys() == {"accuracy-epsilon"}


def test_lines_differ_without_colour():
    looks = [style.look(index) for index in range(6)]
    assert len({(str(look.dash), look.marker) for look in looks}) == 6
    many = [style.look(index) for index in range(36)]
    assert len({(look.color, str(look.dash), look.marker) for look in many}) == 36


@pytest.fixture(scope="module")
def drawn(runs, merged):
    """Every picture of a run, and of all models together."""
    models = read_models([*runs.values(), merged])
    return [*run_pictures(models[0]).values(), *comparison_pictures(models).values()]


def test_text_is_large_enough_on_a_phone_and_not_cut_off(drawn):
    phone = 390 / style.WIDTH / 72  # pixels a point, on a screen 390 pixels wide
    for picture in drawn:
        stream = io.BytesIO()
        picture.savefig(stream, dpi=100)
        stream.seek(0)
        image = matplotlib.image.imread(stream)[..., :3]
        edges = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
        assert edges.min() == 1.0, words(picture)
        sizes = [text.get_fontsize() for text in picture.findobj(Text) if text.get_text() and text.get_visible()]
        assert min(sizes) * phone >= 11


def test_words_and_keys_cover_no_line(drawn):
    for picture in drawn:
        picture.draw_without_rendering()
        renderer = picture.canvas.get_renderer()
        boxes = [text.get_window_extent(renderer) for axes in picture.axes for text in axes.texts]
        boxes += [legend.get_window_extent(renderer) for legend in picture.findobj(Legend)]
        for axes in picture.axes:
            for line in axes.lines:
                corners = line.get_transform().transform(line.get_xydata())
                ends = (corners, corners) if len(corners) < 2 else (corners[:-1], corners[1:])
                places = np.concatenate(np.linspace(*ends, 50))
                assert not any(box.contains(*place) for box in boxes for place in places), words(picture)


def test_quality_axes_fit_what_is_drawn_on_them(drawn):
    shown = [axes for picture in drawn for axes in picture.axes if axes.get_ylabel() == "accuracy, %"]
    assert shown
    for axes in shown:
        low, high = axes.get_ylim()
        heights = np.concatenate([line.get_ydata() for line in axes.lines])
        assert 0 <= low <= heights.min()
        assert heights.max() <= high <= 100
        assert np.ptp(heights) >= 0.5 * (high - low) or high - low <= 10  # nothing is flat for want of room


def test_colours_are_told_apart_in_grey_and_from_paper():
    """Lightness by CIE 1976: a difference of 10 in L* is seen at a glance; white paper has 100."""
    shares = [np.array(matplotlib.colors.to_rgb(each.color)) for each in style.LOOKS]
    linear = [np.where(each <= 0.04045, each / 12.92, ((each + 0.055) / 1.055) ** 2.4) for each in shares]
    luminance = np.array([each @ [0.2126, 0.7152, 0.0722] for each in linear])
    lightness = np.where(luminance > 0.008856, 116 * np.cbrt(luminance) - 16, 903.3 * luminance)
    steps = np.diff(np.sort(np.append(lightness, 100.0)))
    assert steps.min() >= 10
    assert lightness.max() <= 68


# What a dichromat sees of linear RGB: Machado, Oliveira, Fernandes 2009, table 1, severity 1.
SEEN = {
    "everybody": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


@pytest.mark.parametrize("eyes", SEEN)
def test_colours_are_told_apart_by_who_sees_fewer(eyes):
    """CIE 1976: a distance of 2.3 in Lab is just noticed; 20 is seen in a thin line beside another one."""
    shares = np.array([matplotlib.colors.to_rgb(each.color) for each in style.LOOKS])
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    seen = np.clip(linear @ np.transpose(SEEN[eyes]), 0, 1) @ XYZ.T / (XYZ @ [1, 1, 1])
    roots = np.where(seen > (6 / 29) ** 3, np.cbrt(seen), seen * (29 / 6) ** 2 / 3 + 4 / 29)
    x, y, z = roots.T
    places = np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=1)
    distances = np.linalg.norm(places[:, None] - places, axis=2)[~np.eye(len(places), dtype=bool)]
    assert distances.min() >= 20


def test_a_dollar_in_a_name_is_no_formula() -> None:
    canvas, (axes,) = style.figure(r"run $\frac{$ {x}", "a $ b $^")
    assert style.inline(canvas).startswith("data:image/svg")
    assert axes.get_title(loc="left") == r"run $\frac{$ {x}"
