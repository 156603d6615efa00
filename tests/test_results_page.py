"""README's figures, the tables, the page of claims and Figure 1 agree with the runs in results/."""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from intnacl.paper.cells import FilledTable, figure, read_cells

ROOT = Path(__file__).parents[1]
FIGURES = (
    *(("cifar100", metric) for metric in ("clean", "fgsm", "pgd", "pgd_tuned")),
    *(("cifar10", metric) for metric in ("clean", "fgsm", "pgd")),
)


@pytest.fixture(scope="module")
def page():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import draw_results
    finally:
        sys.path.remove(str(ROOT / "docs"))
    return draw_results


@pytest.fixture(scope="module")
def views(page) -> dict[str, FilledTable]:
    return page.results()[0]


def with_another_value(view: FilledTable, points: float) -> FilledTable:
    """Return the table with its first figure changed."""
    cell = view.cells[0][0]
    seed = next(iter(cell.values))
    changed = replace(cell, values={**cell.values, seed: cell.values[seed] + points})
    return replace(view, cells=[[changed, *view.cells[0][1:]], *view.cells[1:]])


@pytest.mark.parametrize(
    ("path", "name", "drawn"),
    [
        ("README.md", "lead", "lead"),
        ("README.md", "results", "summary"),
        ("docs/reproduction.md", "results", "table"),
    ],
)
def test_the_tables_are_the_records_and_claims_are_judged_by_them(page, views, path, name, drawn):
    kept, draw = (ROOT / path).read_text(encoding="utf-8"), getattr(page, drawn)
    assert page.between(kept, draw(views), name) == kept
    other = {**views, "main": with_another_value(views["main"], 0.2)}
    assert page.between(kept, draw(other), name) != kept
    claims = page.CLAIMS.read_text(encoding="utf-8")
    assert page.between(claims, page.claims(page.results()[1])) == claims


def test_the_table_by_seed_lists_every_run():
    text = (ROOT / "docs" / "reproduction_log.md").read_text(encoding="utf-8")
    first = text[text.index("| loss | seed |") :].partition("\n\n")[0].splitlines()[2:]
    shown = {tuple(line.replace(" ", "").split("|")[2:-1]) for line in first}
    for run in read_cells(ROOT / "results")[1].values():
        if run.result:
            found = [figure(run.result, dataset, metric).value for dataset, metric in FIGURES]
            line = (str(run.config.seed), *("" if value is None else f"{value:.2f}" for value in found))
            assert line in shown, f"{run.name}: {line}"


def test_a_figure_of_fewer_seeds_says_so(page, views):
    view = views["main"]
    clean, fgsm = view.cells[0][:2]
    seed, value = next(iter(fgsm.values.items()))
    assert clean.n > 1
    lone = replace(view, cells=[[clean, replace(fgsm, values={seed: value}), *view.cells[0][2:]]])
    assert f"| {value:.2f}, n = 1 ({fgsm.published.mean:.2f}) |" in page.line(lone, 0)
    fewer = [cell for cell in view.cells[0] if 0 < cell.n < clean.n]
    assert page.line(view, 0).count("n = ") == len(fewer)


def test_every_finished_run_is_complete(views):
    folders = sorted((ROOT / "results" / "runs").iterdir())
    assert folders
    for folder in folders:
        result = json.loads((folder / "result.json").read_text())
        config = json.loads((folder / "config.json").read_text())
        assert result["config"] == {key: value for key, value in config.items() if key != "version"}
        epochs = [json.loads(line)["epoch"] for line in (folder / "log.jsonl").read_text().splitlines()]
        assert epochs == list(range(1, result["config"]["train"]["epochs"] + 1))
    cells = [cell for view in views.values() for row in view.cells for cell in row]
    known = {run.name for cell in cells for run in cell.runs.values()}
    assert {folder.name for folder in folders} <= known


def test_the_check_of_table_4_is_complete():
    views, runs = read_cells(ROOT / "results" / "tinyimagenet-20")
    assert len(runs) == 12
    assert [name for name, run in runs.items() if run.result is None] == []
    assert all(cell.published is None for view in views for row in view.cells for cell in row)


def opened(png: bytes) -> tuple[str, np.ndarray]:
    """Return the values in a figure's metadata, and its pixels."""
    image = Image.open(io.BytesIO(png))
    return image.text["values"], np.asarray(image.convert("RGB").resize((736, 304)), dtype=float)


def test_the_figure_is_the_records(page, views):
    kept, kept_pixels = opened(page.FIGURE.read_bytes())
    drawn, drawn_pixels = opened(page.figure(views["figure1"]))
    assert drawn == kept
    assert page.values(with_another_value(views["figure1"], 0.02)) != kept
    # Versions of matplotlib render text slightly differently, but another image would differ much more.
    assert np.corrcoef(drawn_pixels.ravel(), kept_pixels.ravel())[0, 1] > 0.4
    assert np.corrcoef(drawn_pixels[:, ::-1].ravel(), kept_pixels.ravel())[0, 1] < 0.2
