"""The page in a real browser: it loads, sorts, filters and shows the runs, without errors on the console.

The tests are skipped if no browser is installed.
"""

from pathlib import Path

import pytest
from made_up import fill, paper_plan, shifted

from intnacl.paper.claims import CLAIMS
from intnacl.paper.report import write_report

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("results")
    plan = paper_plan(("2", "figure1", "figure_lambda"), [0, 1, 2])
    missing = plan.cells["table2"][1][0][0][:-10]  # one seed of NCA(g0, 2)
    fill(results, plan, shifted(-0.5),
         skip=lambda job: job.config.loss.num_positives == 4 or job.name.startswith(missing))  # fmt: skip
    write_report(results, results / "out")
    return results / "out" / "report.html"


FIRST = "document.querySelector('#table2 table')"
COLUMN = f"[...{FIRST}.tBodies[0].rows].map((row) => row.cells[2].dataset.value)"
CLICK = f"{FIRST}.tHead.rows[0].cells[2].querySelector('button').click()"
SHOWN = (
    "[...document.querySelectorAll('main section:not(#time) tbody tr')]"
    ".filter((row) => row.getClientRects().length).length"
)
TIMED = "document.querySelectorAll('#time:not([hidden]) tbody tr:not([hidden])').length"


def test_the_page_loads_sorts_and_filters(browser, report):
    browser.open(report)
    assert browser.js("document.title") == "Measured and published"
    everything = browser.js(SHOWN)
    assert everything == 20 + 7 + 10
    timed = browser.js(TIMED)
    assert timed > 20
    shown_claims = "document.querySelectorAll('#claims:not([hidden]) .claim').length"
    assert browser.js(shown_claims) == len(CLAIMS)
    printed = browser.js(COLUMN)
    assert "" in printed
    for order in ("ascending", "descending"):
        browser.js(CLICK)
        assert browser.js(f"{FIRST}.tHead.rows[0].cells[2].getAttribute('aria-sort')") == order
        column = browser.js(COLUMN)
        numbers = [float(value) for value in column if value]
        assert numbers == sorted(numbers, reverse=order == "descending")
        assert column[len(numbers) :] == [""] * (len(column) - len(numbers))  # missing ones last
    browser.js(CLICK)
    assert browser.js(COLUMN) == printed
    type_in = "filter.value = {!r}; filter.dispatchEvent(new Event('input'))"
    browser.js(type_in.format("mixnca g2 M = 5"))
    assert browser.js(SHOWN) == 2  # one of Table 2, one of the figure over λ
    browser.js(type_in.format("nothing like this"))
    assert browser.js(SHOWN) == 0
    assert (browser.js(shown_claims), browser.js(TIMED)) == (len(CLAIMS), timed)
    assert browser.js("document.getElementById('count').value") == f"0 of {everything} rows"
    browser.js(type_in.format(""))
    browser.js("const menu = document.getElementById('status'); menu.value = 'open'")
    browser.js("menu.dispatchEvent(new Event('change'))")
    assert 0 < browser.js(SHOWN) < everything
    assert browser.complaints == []


def test_a_cell_shows_its_runs(browser, report):
    browser.open(report)
    browser.js("document.querySelector('#table2 button.cell').click()")
    assert browser.js("document.getElementById('runs').open")
    text = browser.js("document.getElementById('runs').innerText")
    assert "NCA(g0) · M = 1 · CIFAR-100 clean" in text
    assert text.count("intnacl run --dataset cifar100") == 3
    assert "protocol and times" in text
    browser.js("document.querySelector('#runs form button').click()")
    assert not browser.js("document.getElementById('runs').open")
    assert browser.complaints == []


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)])
def test_the_page_fits_every_screen(browser, report, tmp_path, width, dark):
    browser.open(report, width, dark)
    assert browser.js("document.documentElement.scrollWidth") <= width
    style = "getComputedStyle(document.body)"
    ink, page = browser.js(f"{style}.color"), browser.js(f"{style}.backgroundColor")
    contrast = _light(page) - _light(ink)
    assert (contrast < -0.5) if dark else (contrast > 0.5)
    svg = browser.js("getComputedStyle(document.querySelector('figure svg text')).fill")
    assert svg == ink  # figures follow the page
    browser.shot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 20_000
    assert browser.complaints == []


def _light(colour: str) -> float:
    red, green, blue = (int(part) / 255 for part in colour.removeprefix("rgb(").rstrip(")").split(","))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
