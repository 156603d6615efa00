"""Figures become SVG that takes the page's colours."""

from xml.etree import ElementTree

from matplotlib.figure import Figure

from intnacl.plots.drawings import INK, inline_svg
from intnacl.plots.evaluation import RIGHT


def _figure() -> Figure:
    figure = Figure()
    axes = figure.add_subplot(title="a < b & c", xlabel="x")
    axes.plot([1, 2])
    axes.text(1, 1, "right", color=RIGHT)
    return figure


def test_text_is_in_the_pages_ink_and_escaped() -> None:
    svg = inline_svg(_figure, 'of "x" & <y>')
    tree = ElementTree.fromstring(svg)  # well-formed
    assert tree.get("aria-label") == 'of "x" & <y>'
    texts = ["".join(node.itertext()) for node in tree.iter() if node.tag.endswith("}text")]
    assert "a < b & c" in texts
    assert "currentColor" in svg
    assert "var(--right)" in svg
    assert INK not in svg
    assert "<metadata>" not in svg


def test_equal_figures_give_equal_text_and_others_share_no_ids() -> None:
    assert inline_svg(_figure, "one") == inline_svg(_figure, "one")
    clips = [
        {part.split('"')[0] for part in inline_svg(_figure, t).split("url(#")[1:]} for t in ("one", "two")
    ]
    assert clips[0]
    assert not clips[0] & clips[1]
