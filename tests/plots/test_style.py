"""Colours for colour-blind readers, characters of any script, labels without overlap, SVG in page colours."""

from itertools import combinations, pairwise
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from intnacl.errors import InputError
from intnacl.plots.style import (
    COLORS,
    PAGE_INK,
    RIGHT,
    end_labels,
    font_families,
    inline_svg,
    save_figure,
    spread_apart,
)

FONTS = Path(mpl.get_data_path()) / "fonts" / "ttf"
# What red-, green- and blue-blind eyes see, in linear RGB (Machado et al. 2009, severity 1).
EYES = {
    "all": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protan": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deutan": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritan": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]


def lab(color: str, eye: str) -> np.ndarray:
    rgb = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = np.array(XYZ) @ np.clip(np.array(EYES[eye]) @ linear, 0, 1) / np.array([0.9505, 1, 1.089])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("eye", EYES)
def test_colors_differ_for_every_eye(eye):
    for a, b in combinations(COLORS, 2):
        assert np.linalg.norm(lab(a, eye) - lab(b, eye)) > 10, (a, b)


@pytest.mark.parametrize(
    ("texts", "more"), [(["bac", "z"], []), (["Ж", "a"], ["Sans"]), (["ЖЩ", "𝛀"], ["Sans"]), (["蓝"], [])]
)
def test_another_font_provides_the_characters_that_the_usual_one_lacks(texts, more, monkeypatch):
    installed = [("Broken", "none.ttf", 400), ("Last Resort High-Efficiency", "DejaVuSans.ttf", 400),
                 ("Bold", "DejaVuSans-Bold.ttf", 700), ("Sans", "DejaVuSans.ttf", 400)]  # fmt: skip
    listed = [SimpleNamespace(name=n, fname=str(FONTS / file), weight=w) for n, file, w in installed]
    monkeypatch.setattr("matplotlib.font_manager.fontManager.ttflist", listed)
    monkeypatch.setattr("matplotlib.font_manager.findfont", lambda _: str(FONTS / "cmr10.ttf"))
    assert font_families(texts) == ["sans-serif", *more]


@pytest.mark.parametrize(
    ("values", "limits", "placed"),
    [
        ([], (), []),
        ([0.0, 5.0], (), [0.0, 5.0]),  # far enough
        ([3.0, 3.0], (), [2.5, 3.5]),
        ([1.0, 0.9], (), [1.45, 0.45]),  # the order stays
        ([0.0, 0.0, 1.2], (), [-0.6, 0.4, 1.4]),  # a pair pushes its neighbour
        ([0.0, 0.0, 0.0], (0.0, 10.0), [0.0, 1.0, 2.0]),
        ([10.0, 10.0], (0.0, 10.0), [9.0, 10.0]),
    ],
)
def test_values_are_moved_apart_no_further_than_needed(values, limits, placed):
    assert spread_apart(values, 1.0, *limits) == pytest.approx(placed)


@pytest.mark.parametrize("right", [None, 2.0])
def test_labels_are_beside_the_curves_and_do_not_overlap(right):
    figure = Figure(figsize=(5, 4))
    axes = figure.subplots()
    axes.plot([0, 1], [0, 50])
    end_labels(axes, [])
    end_labels(axes, [(i / 5, 1.0 + i / 100, f"curve {i}", "black") for i in range(6)], right=right)
    figure.draw_without_rendering()
    boxes = sorted((Text.get_window_extent(label) for label in axes.texts), key=lambda box: box.y0)
    assert len(boxes) == 6
    assert all(below.y1 <= above.y0 + 1 for below, above in pairwise(boxes))
    assert all(box.x0 > axes.transData.transform((right or 1.0, 0))[0] for box in boxes)


def draw() -> Figure:
    figure = Figure()
    axes = figure.add_subplot(title="a < b & c", xlabel="x")
    axes.plot([1, 2])
    axes.text(1, 1, "right", color=RIGHT)
    return figure


def test_svg_is_in_the_pages_colors_and_escaped():
    svg = inline_svg(draw, 'of "x" & <y>')
    tree = ElementTree.fromstring(svg)  # well-formed
    assert tree.get("aria-label") == 'of "x" & <y>'
    assert "a < b & c" in ["".join(node.itertext()) for node in tree.iter() if node.tag.endswith("}text")]
    assert "currentColor" in svg
    assert "var(--right)" in svg
    assert PAGE_INK not in svg
    assert "<metadata>" not in svg


def test_equal_figures_give_equal_svg_and_others_share_no_ids():
    assert inline_svg(draw, "one") == inline_svg(draw, "one")
    one, two = (
        {part.split('"')[0] for part in inline_svg(draw, title).split("url(#")[1:]}
        for title in ("one", "two")
    )
    assert one
    assert not one & two


def test_figures_are_saved_with_their_parent_folders(tmp_path):
    save_figure(draw(), tmp_path / "new" / "grid.png")
    assert (tmp_path / "new" / "grid.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match=r"grid\.txt' is not an image: end its name in one of \.png"):
        save_figure(draw(), tmp_path / "grid.txt")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InputError, match=r"folder\.png could not be written: Is a directory"):
        save_figure(draw(), tmp_path / "folder.png")
