"""Figures: everything is in them, as text, in the page's colours."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from grids import table
from made_up import fill, shifted

from intnacl.paper.cells import FilledTable, read_cells
from intnacl.paper.figures import DRAWERS, curves, draw, plain
from intnacl.paper.grid import PAPER, pick
from intnacl.paper.plan import make_plan
from intnacl.plots.style import COLORS, PAGE_INK

NAMES = ("figure1", "figure_lambda", "figure_eps", "figure_runtime")


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FilledTable]:
    results = tmp_path_factory.mktemp("results")
    fill(results, make_plan(pick(PAPER, NAMES), [0, 1], universe=PAPER), shifted(-0.5))
    return {view.name: view for view in read_cells(results)[0]}


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_labelled_directly(views: dict[str, FilledTable], name: str) -> None:
    svg, png = draw(views[name])
    texts = {"".join(text.itertext()) for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")}
    assert {row.label for row in views[name].rows} <= texts
    assert png.startswith(b"\x89PNG")
    assert len(png) > 20_000


@pytest.mark.parametrize("name", NAMES)
def test_text_takes_the_colour_of_the_page(views: dict[str, FilledTable], name: str) -> None:
    svg, _ = draw(views[name])
    assert PAGE_INK not in svg
    assert "currentColor" in svg
    assert not re.findall(r"(?:fill|stroke): #(?:000000|ffffff)", svg.split("<defs>")[0])


def test_equal_results_give_equal_bytes(views: dict[str, FilledTable]) -> None:
    assert draw(views["figure1"]) == draw(views["figure1"])


@pytest.mark.parametrize("name", NAMES)
def test_published_values_far_off_are_still_on_the_axes(tmp_path: Path, name: str) -> None:
    fill(tmp_path, make_plan(pick(PAPER, (name,)), [0], universe=PAPER), shifted(4.0))
    (view,) = read_cells(tmp_path)[0]
    for ax in DRAWERS[str(view.figure)](view).axes:
        points = np.concatenate([line.get_xydata() for line in ax.lines if len(line.get_xydata())])
        (left, right), (low, high) = sorted(ax.get_xlim()), sorted(ax.get_ylim())
        assert left <= points[:, 0].min()
        assert points[:, 0].max() <= right
        assert low <= points[:, 1].min()
        assert points[:, 1].max() <= high


def test_a_program_keeps_its_backend_and_its_own_figures(views: dict[str, FilledTable]) -> None:
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    before = mpl.get_backend()
    plt.switch_backend("svg")  # as a notebook has another than ours
    mine = plt.figure()
    try:
        draw(views["figure1"])
        assert mpl.get_backend() == "svg"
        assert plt.gcf() is mine
    finally:
        plt.close(mine)
        plt.switch_backend(before)


def test_what_only_the_paper_has_is_labelled_too(tmp_path: Path) -> None:
    plan = make_plan(pick(PAPER, ("figure1",)), [0], universe=PAPER)
    fill(tmp_path, plan, shifted(1.0), skip=lambda job: job.config.loss.num_positives == 5)
    svg, _ = draw(read_cells(tmp_path)[0][0])
    assert ">IntNaCl, paper<" in svg
    assert ">IntCl, paper<" not in svg


def test_a_curve_that_is_only_begun_is_labelled_at_its_published_end(tmp_path: Path) -> None:
    """The line from its first point to the label would look like a curve of its own."""
    plan = make_plan(pick(PAPER, ("figure_lambda",)), [0], universe=PAPER)
    fill(tmp_path, plan, shifted(), skip=lambda job: job.config.loss.lam > 0.5)
    figure = curves(read_cells(tmp_path)[0][0])
    assert {label.xy[0] for ax in figure.axes for label in ax.texts} == {0.9}


def test_nothing_measured_is_still_a_figure(tmp_path: Path) -> None:
    fill(tmp_path, make_plan(pick(PAPER, NAMES), [0], universe=PAPER), shifted(), skip=lambda job: True)
    for view in read_cells(tmp_path)[0]:
        assert draw(view)[0].startswith("<svg")


@pytest.mark.parametrize("figure", ["curves", "runtime"])
def test_a_panel_without_values_says_so_and_has_no_scale(tmp_path: Path, figure: str) -> None:
    plain_table = table(2, epochs=(1, 2))
    rows = tuple(replace(row, group=row.label) for row in plain_table.rows)
    columns = tuple(replace(c, x=float(i + 1), metric="clean") for i, c in enumerate(plain_table.columns))
    plan = make_plan([replace(plain_table, figure=figure, rows=rows, columns=columns)], [0])
    fill(tmp_path, plan, shifted(), skip=lambda job: job.config.loss.temperature > 0.5)
    texts = [
        "".join(text.itertext())
        for text in ET.fromstring(draw(read_cells(tmp_path)[0][0])[0]).iter(
            "{http://www.w3.org/2000/svg}text"
        )
    ]
    empty = {"curves": 1, "runtime": 3}[figure]  # no minutes are measured either
    assert texts.count("not measured yet") == empty
    assert "0.2" not in texts  # of an axis from 0 to 1, which is no accuracy's


def test_labels_have_no_formulas_and_an_end() -> None:
    assert plain("5 $x^2$") == r"5 \$x^2\$"
    assert plain("x" * 100) == "x" * 39 + "…"


def _own(tmp_path: Path, figure: str, rows: int, metric: str = "clean") -> FilledTable:
    plain_table = table(rows, epochs=(1, 2))
    columns = tuple(replace(c, x=i, metric=metric) for i, c in enumerate(plain_table.columns))
    fill(tmp_path, make_plan([replace(plain_table, figure=figure, columns=columns)], [0]), shifted())
    (view,), _ = read_cells(tmp_path)
    return view


@pytest.mark.parametrize("figure", ["curves", "runtime"])
def test_there_may_be_more_rows_than_colours(tmp_path: Path, figure: str) -> None:
    svg, _ = draw(_own(tmp_path, figure, rows=len(COLORS) + 2))
    assert f"t {len(COLORS) + 1}" in svg


def test_a_scatter_of_minutes_has_no_percent(tmp_path: Path) -> None:
    svg, _ = draw(_own(tmp_path, "scatter", rows=1, metric="minutes"))
    assert "2 epochs" in svg
    assert "%" not in re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)


def test_an_axis_of_minutes_says_so(tmp_path: Path) -> None:
    svg, _ = draw(_own(tmp_path, "curves", rows=1, metric="minutes"))
    assert "minutes of training" in svg
    assert "accuracy" not in svg


def test_one_table_under_two_settings_shares_no_id(views: dict[str, FilledTable]) -> None:
    one, two = (draw(replace(views["figure1"], key=key))[0] for key in ("figure1", "figure1 train.lr=1"))
    first, second = (set(re.findall(r'<clipPath id="([^"]+)"', svg)) for svg in (one, two))
    assert first
    assert not first & second
