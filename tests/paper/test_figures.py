"""Figures: all labels and values are in them, as text, in the page's colours."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grids import table
from made_up import fill, paper_plan, shifted

from intnacl.paper.cells import FilledTable, read_cells
from intnacl.paper.figures import DRAWERS, curves, draw, plain
from intnacl.paper.plan import Job, make_plan
from intnacl.paper.tables import Table
from intnacl.plots.style import COLORS, PAGE_INK

NAMES = ("figure1", "figure_lambda", "figure_eps", "figure_runtime")


def filled(results: Path, names: tuple[str, ...], shift: float = 0.0, **more: Any) -> dict[str, FilledTable]:
    fill(results, paper_plan(names, [0, 1]), shifted(shift), **more)
    return {one.name: one for one in read_cells(results)[0]}


def own(results: Path, figure: str, rows: int, metric: str = "clean", **more: Any) -> FilledTable:
    """Return a figure of a user's grid over epochs."""
    grid: Table = table(rows, epochs=(1, 2))
    columns = tuple(replace(c, x=float(i + 1), metric=metric) for i, c in enumerate(grid.columns))
    groups = tuple(replace(row, group=row.label) for row in grid.rows) if more else grid.rows
    plan = make_plan([replace(grid, figure=figure, columns=columns, rows=groups)], [0])
    fill(results, plan, shifted(), **more)
    return read_cells(results)[0][0]


def texts_of(svg: str) -> list[str]:
    elements = ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(element.itertext()) for element in elements]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FilledTable]:
    return filled(tmp_path_factory.mktemp("results"), NAMES, -0.5)


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_labelled_directly_in_the_colour_of_the_page(tables, name):
    svg, png = draw(tables[name])
    assert {row.label for row in tables[name].rows} <= set(texts_of(svg))
    assert PAGE_INK not in svg
    assert "currentColor" in svg
    assert not re.findall(r"(?:fill|stroke): #(?:000000|ffffff)", svg.split("<defs>")[0])
    assert png.startswith(b"\x89PNG")
    assert len(png) > 20_000


def test_equal_results_give_equal_bytes_and_no_two_figures_share_an_id(tables):
    assert draw(tables["figure1"]) == draw(tables["figure1"])
    other = replace(tables["figure1"], key="figure1 train.lr=1")
    first, second = (
        set(re.findall(r'<clipPath id="([^"]+)"', draw(t)[0])) for t in (tables["figure1"], other)
    )
    assert first
    assert not first & second


@pytest.mark.parametrize("name", NAMES)
def test_distant_published_values_are_still_on_the_axes(tmp_path, name):
    (one,) = filled(tmp_path, (name,), 4.0).values()
    for ax in DRAWERS[str(one.figure)](one).axes:
        points = np.concatenate([line.get_xydata() for line in ax.lines if len(line.get_xydata())])
        low, high = np.sort([ax.get_xlim(), ax.get_ylim()]).T
        assert (low <= points.min(0)).all()
        assert (points.max(0) <= high).all()


def test_the_backend_and_the_figures_of_the_calling_program_are_unchanged(tables):
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    before = mpl.get_backend()
    plt.switch_backend("svg")  # as a notebook has another than ours
    mine = plt.figure()
    try:
        draw(tables["figure1"])
        assert mpl.get_backend() == "svg"
        assert plt.gcf() is mine
    finally:
        plt.close(mine)
        plt.switch_backend(before)


def test_values_of_the_paper_alone_are_labelled_too(tmp_path):
    results = filled(tmp_path, ("figure1",), 1.0, skip=lambda job: job.config.loss.num_positives == 5)
    texts = texts_of(draw(results["figure1"])[0])
    assert "IntNaCl, paper" in texts
    assert "IntCl, paper" not in texts


def test_an_incomplete_curve_is_labelled_at_its_published_end(tmp_path):
    """A line from its first point to a distant label would look like a curve."""
    results = filled(tmp_path, ("figure_lambda",), skip=lambda job: job.config.loss.lam > 0.5)
    figure = curves(results["figure_lambda"])
    assert {label.xy[0] for ax in figure.axes for label in ax.texts} == {0.9}  # type: ignore[attr-defined]


def test_a_figure_without_measured_values_is_drawn(tmp_path):
    for one in filled(tmp_path, NAMES, skip=lambda job: True).values():
        assert draw(one)[0].startswith("<svg")


@pytest.mark.parametrize(("figure", "empty"), [("curves", 1), ("runtime", 3)])  # nor has it minutes
def test_a_panel_without_values_says_so_and_rows_may_outnumber_colours(tmp_path, figure, empty):
    def skip(job: Job) -> bool:
        return job.config.loss.temperature > 0.5

    texts = texts_of(draw(own(tmp_path / "some", figure, rows=2, skip=skip))[0])
    assert texts.count("not measured yet") == empty
    assert "0.2" not in texts  # a tick of the default axis from 0 to 1
    many = own(tmp_path / "many", figure, rows=len(COLORS) + 2)
    assert f"t {len(COLORS) + 1}" in texts_of(draw(many)[0])


def test_labels_are_escaped_and_cut():
    assert plain("5 $x^2$") == r"5 \$x^2\$"
    assert plain("x" * 100) == "x" * 39 + "…"


@pytest.mark.parametrize(("figure", "axis"), [("scatter", "2 epochs"), ("curves", "minutes of training")])
def test_minutes_are_not_labelled_as_percent(tmp_path, figure, axis):
    texts = texts_of(draw(own(tmp_path, figure, rows=1, metric="minutes"))[0])
    assert axis in texts
    assert not [text for text in texts if "%" in text or "accuracy" in text]
