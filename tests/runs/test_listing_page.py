"""The page of many runs: self-contained, escaped, and used with mouse and keyboard in a real browser."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from browser import Browser
from intnacl.runs.listing_page import MOST_POINTS, render_listing, write_listing
from intnacl.runs.summary import read_runs, summarize_run
from tiny_run import measured

RESULTS = Path(__file__).parents[2] / "results"


def data_of(text: str) -> dict:
    return json.loads(
        re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)[1]
    )


def test_the_page_is_self_contained_and_holds_the_curves_of_the_logs(tmp_path):
    run = summarize_run(measured(tmp_path).folder)
    text = render_listing([run], tmp_path, tmp_path / "runs.html")
    assert not re.search(r'(src|href)="(?!run/report\.html")', text)
    assert 'href="run/report.html"' in text
    (one,) = data_of(text)["runs"]
    log = [json.loads(line) for line in run.folder.log.read_text().splitlines()]
    assert one["curves"]["epoch"] == [row["epoch"] for row in log]
    assert one["curves"]["loss"] == pytest.approx([row["loss"] for row in log], rel=1e-4)
    assert one["curves"]["minutes"][-1] == pytest.approx(sum_of(log[-1]) / 60, rel=1e-3)


def sum_of(record: dict[str, float]) -> float:
    return record["seconds"] + record["compiling"] + record["pausing"]


def test_long_logs_are_thinned_and_nan_is_left_out(tmp_path):
    run = summarize_run(measured(tmp_path).folder)
    rows = [{"epoch": k, "step": k, "loss": float("nan") if k == 1 else 1 / k} for k in range(1, 5001)]
    run.folder.log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = data_of(render_listing([replace(run, epochs_done=5000)], tmp_path, tmp_path / "runs.html"))
    curves = data["runs"][0]["curves"]
    assert len(curves["loss"]) == MOST_POINTS
    assert (curves["loss"][0], curves["epoch"][-1]) == (None, 5000)
    assert str(MOST_POINTS) in data["thinned"]
    run.folder.log.unlink()
    assert data_of(render_listing([run], tmp_path, tmp_path / "x.html"))["figures"] == []


def test_text_from_outside_is_escaped(tmp_path):
    evil = "</script><img src=x onerror=alert(1)>"
    run = replace(summarize_run(measured(tmp_path).folder), name=evil)
    text = render_listing([run], tmp_path, tmp_path / "runs.html")
    assert "<img" not in text
    assert data_of(text)["runs"][0]["name"] == evil


# ---- in a browser ------------------------------------------------------------------------------------------

CURVES = "[...document.querySelectorAll('#chart path')].map((path) => path.dataset.run)"
HINT = "document.getElementById('hint').hidden ? '' : document.getElementById('hint').innerText"
SHOWN = "[...document.querySelectorAll('tbody tr')].filter((row) => row.getClientRects().length)"
NAMES = f"{SHOWN}.map((row) => row.querySelector('th').innerText.trim())"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "runs.html"
    write_listing(read_runs(RESULTS), RESULTS, out)
    return out


def place(browser: Browser, selector: str) -> tuple[float, float]:
    """Scroll an element into view, and return its middle."""
    one = f"document.querySelector({json.dumps(selector)})"
    browser.js(f"{one}.scrollIntoView({{ block: 'center' }})")
    box = browser.js(
        f"(() => {{ const b = {one}.getBoundingClientRect(); return [b.x, b.y, b.width, b.height] }})()"
    )
    return box[0] + box[2] / 2, box[1] + box[3] / 2


@pytest.mark.slow
@pytest.mark.parametrize("width", [1300, 400])
def test_the_mouse_shows_facts_of_a_curve_and_the_legend_switches_curves(browser, page, width):
    browser.open(page, width)
    assert browser.js("document.documentElement.scrollWidth") <= width
    first = browser.js(CURVES)
    assert len(first) == 12
    run, x, y = browser.js(
        "(() => { const one = drawn[3], p = one.points[2], box = chart.getBoundingClientRect();"
        " return [data.runs[one.run].name, box.x + p[3], box.y + p[4]] })()"
    )
    browser.mouse("moved", x, y)
    assert browser.js(HINT).split("\n")[0] in first
    assert "epoch" in browser.js(HINT)
    inside = (
        "(() => { const b = hint.getBoundingClientRect(); return b.left >= 0 && b.right <= innerWidth })()"
    )
    assert browser.js(inside)
    browser.mouse("moved", 2, 2)
    assert browser.js(HINT) == ""
    browser.click(*place(browser, f"input[aria-label='draw {run}']"))
    assert browser.js(CURVES).count(run) == 0
    browser.click(*place(browser, "#none"))
    assert browser.js(CURVES) == []
    browser.click(*place(browser, "#filter"))
    browser.press(*"intcl-seed1")
    assert browser.js(NAMES) == ["recipe/hclhead-intcl-seed1", "recipe/length1-intcl-seed1"]
    browser.click(*place(browser, "#all"))
    browser.settle()
    assert set(browser.js(CURVES)) <= set(browser.js(NAMES))
    assert browser.js("document.getElementById('count').value") == f"2 of {browser.js('rows.length')} runs"
    assert browser.complaints == []


@pytest.mark.slow
def test_keys_move_along_a_curve_and_between_runs(browser, page):
    browser.open(page, 1300)
    browser.js("chart.focus()")
    told = []
    for key in ("ArrowUp", "ArrowLeft", "ArrowLeft", "ArrowUp", "Escape"):
        browser.press(key)
        told.append(browser.js(HINT))
    names, epochs = zip(*(text.split("\n")[:2] for text in told[:4]), strict=True)
    assert names[0] == names[1] == names[2] != names[3]
    numbers = [int(re.search(r"epoch (\d+)", text)[1]) for text in epochs]
    assert numbers[0] > numbers[1] > numbers[2]
    values = [float(text.rsplit(" ", 1)[1]) for text in epochs]
    assert values[3] >= values[2]
    assert told[4] == ""
    browser.js("document.querySelector('thead button').focus()")
    browser.press("Tab")
    assert browser.js("document.activeElement.closest('th').innerText") != "run"
    assert browser.complaints == []


@pytest.mark.slow
def test_columns_sort_and_every_curve_can_be_chosen(browser, page):
    browser.open(page, 1300)
    heads = browser.js("[...document.querySelectorAll('thead button')].map((one) => one.innerText)")
    column = heads.index("clean")
    cells = f"{SHOWN}.map((row) => row.cells[{column}].innerText)"
    for order, falls in (("descending", True), ("ascending", False)):
        browser.click(*place(browser, f"thead th:nth-child({column + 1}) button"))
        assert browser.js("document.querySelector('[aria-sort]').getAttribute('aria-sort')") == order
        values = browser.js(cells)
        known = [float(value) for value in values if value != "–"]
        assert known == sorted(known, reverse=falls)
        assert set(values[len(known) :]) == {"–"}
    browser.click(*place(browser, "#all"))
    for figure in browser.js("data.figures.map(([name]) => name)"):
        for over in ("epoch", "minutes"):
            browser.js(
                f"figure.value = '{figure}'; over.value = '{over}'; figure.dispatchEvent(new Event('change'))"
            )
            expected = browser.js(f"data.runs.filter((run) => run.curves['{figure}']).length")
            assert browser.js(CURVES + ".length") == expected > 0, (figure, over)
    assert browser.complaints == []


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_follows_the_colour_scheme_of_the_system(browser, page, dark):
    browser.open(page, 400, dark)
    paper = browser.js("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(20, 24, 28)") == dark
    unnamed = (
        "[...document.querySelectorAll('button, input, select, [tabindex]')].filter((one) => !(one.innerText"
    )
    unnamed += " || one.getAttribute('aria-label') || one.labels?.[0]?.innerText)).length"
    assert browser.js(unnamed) == 0
