"""The page of one run, self-contained and escaped, and its tables on the console."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from intnacl.console import two_decimals
from intnacl.evaluation.confusion import class_accuracies
from intnacl.runs.attack import AttackGroup, attacks_at, group_rows, measure_attacks
from intnacl.runs.folder import RunFolder
from intnacl.runs.measure import measure_hcl_probe, measure_knn, measure_probe
from intnacl.runs.measurement import KINDS
from intnacl.runs.measurements import Measurements
from intnacl.runs.opened import Run
from intnacl.runs.overview import Overview
from intnacl.runs.page import print_attacks, print_probes, print_result, render, write_result_and_page
from intnacl.runs.result import Result, best_rows
from tiny_run import measured, measured_original, write_images


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        names = ("src", "href", "xlink:href")
        self.links += [value or "" for name, value in attrs if name in names]


def page_of(run: Run) -> str:
    found = Overview(run)
    return render(found, found.result())


def test_the_page_is_self_contained_and_shows_figures_and_drawings(tmp_path):
    run = measured(tmp_path)
    text = re.sub(r"\s+", " ", run.folder.page.read_text())
    tags = Tags(text)
    assert (
        tags.seen.count("svg") == 8
    )  # robustness, examples in halves, confusion, loss, accuracies, rank, probe
    assert all(link.startswith(("data:", "#")) for link in tags.links)
    assert "script" not in tags.seen
    assert "prefers-color-scheme: dark" in text
    row = Overview(run).result()["accuracy"]["digits"]
    cells = "".join(f"<td>{row[key]:.2f}</td>" for key in ("clean", "fgsm", "pgd"))
    assert f"<td>digits</td>{cells}" in text
    assert "simclr on digits" in text
    assert "PGD at eps 0.1." in text  # the images at the largest radius, where most can be seen
    assert "PGD does not change an image that is already misclassified" in text


def test_a_page_is_drawn_from_stored_data(tmp_path, monkeypatch):
    """Measurements are read once, and images are neither loaded nor attacked again."""
    run, seen = measured(tmp_path), []
    before, real = run.folder.page.read_text(), Measurements.all
    monkeypatch.setattr(Measurements, "all", lambda stored, kind: seen.append(kind) or real(stored, kind))
    monkeypatch.setattr("intnacl.runs.images.load", None)
    run.folder.page.unlink()
    assert write_result_and_page(run)
    assert seen == list(KINDS)
    assert Tags(run.folder.page.read_text()).seen == Tags(before).seen


def test_a_page_without_stored_examples_lacks_their_picture(tmp_path):
    """The pages of runs of an earlier version are such."""
    name, run = write_images(tmp_path / "images"), measured(tmp_path)
    measure_attacks(run, name, attacks_at(["fgsm"], 0.02, None))
    assert Tags(page_of(run)).seen.count("svg") == 12
    run.folder.examples(name).unlink()
    text = page_of(run)
    assert f"Under attack: {name}" in text
    assert Tags(text).seen.count("svg") == 10
    assert "None" not in text


def test_other_probes_are_listed_with_their_differences_and_knn_is_that_of_the_run(tmp_path):
    run = measured(tmp_path)
    assert "the run&#39;s own" not in run.folder.page.read_text()
    own = measure_knn(run, "digits").figures["accuracy"]
    assert measure_knn(run, "digits", 1).figures["accuracy"] != own
    quick = measure_probe(run, "digits", replace(run.config.probe, solver="lbfgs"))
    one, two = (measure_hcl_probe(run, "digits", epochs) for epochs in (1, 2))
    text = page_of(run)
    names = {"solver = lbfgs": quick, "HCL&#39;s, epochs = 1": one, "HCL&#39;s, epochs = 2": two}
    for kind, part in names.items():
        assert f">{kind}</td><td>{part.figures['accuracy']:.2f}</td>" in text
    assert text.count("the run&#39;s own") == 1
    assert f"<td>{own:.2f}</td></tr>\n</tbody>" in text
    without_radii = replace(run.config.evaluation, eps=())
    assert "<td>–</td><td>–</td>" in page_of(
        replace(run, config=replace(run.config, evaluation=without_radii))
    )


def test_text_from_outside_is_escaped(tmp_path):
    run = measured(tmp_path)
    result = Overview(run).result() | {"warnings": ["<script>alert(1)</script>"]}
    result["protocol"]["hardware"]["cpu"] = "<img src=x onerror=alert(1)>"
    evil = replace(run, config=replace(run.config, recipe="<b>bold</b>"))
    text = render(Overview(evil), result)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert not {"script", "img", "b"} & set(Tags(text).seen)


def test_the_row_over_most_images_and_the_lowest_worst_case_are_drawn():
    rows = [
        {"dataset": dataset, "name": "pgd", "eps": eps, "images": images, "accuracy": 1.0, "clean": images}
        for dataset, eps, images in (("a", 0.1, 8), ("a", 0.1, 64), ("a", 0.02, 8), ("b", 0.1, 99))
    ]
    found = best_rows({"attacks": rows}, "a")
    assert [(row["eps"], row["images"]) for row in found] == [(0.02, 8), (0.1, 64)]
    assert best_rows({"attacks": rows}, "c") == []
    row = {"dataset": "a", "name": "worst_case", "eps": 0.1, "images": 8}
    low = row | {"accuracy": 0.5, "of": ["fgsm", "pgd"]}
    high = row | {"accuracy": 0.9, "of": ["fgsm", "pgd_tuned"]}
    alone = row | {"accuracy": 0.9, "of": ["fgsm"], "images": 64}
    for order in ([low, high, alone], [alone, high, low]):
        assert best_rows({"attacks": order}, "a") == [low]


def test_rows_are_sorted_by_radius_and_then_by_attack():
    names = ["fgsm", "pgd_tuned", "mine", "worst_case"]
    falling = [
        {"dataset": "a", "name": name, "eps": eps, "images": 8, "accuracy": accuracy}
        for eps, accuracies in ((0.1, (4, 3, 2, 1)), (0.02, (1, 2, 3, 4)))
        for name, accuracy in zip(names, accuracies, strict=True)
    ]
    found = best_rows({"attacks": falling}, "a")
    assert [(row["eps"], row["name"]) for row in found] == [(eps, n) for eps in (0.02, 0.1) for n in names]


def test_radii_in_grey_levels_are_written_as_fractions(tmp_path, capsys):
    run = measured(tmp_path)
    print_attacks("digits", group_rows(AttackGroup(run.measure(attacks_at(["pgd"], 8 / 255, 8)), [])))
    assert "images  8/255" in capsys.readouterr().out
    text = run.folder.page.read_text()
    shown = re.findall(r"<tr><td>([^<]*)</td><td class=\"words short\">PGD", text)
    assert shown == ["0.02", "8/255", "0.1"]
    assert "0.03137" not in text.split("<h2>Protocol")[0]
    assert any(row["eps"] == 8 / 255 for row in run.result["attacks"])


@pytest.mark.slow
@pytest.mark.parametrize("width", [1300, 400])
def test_the_page_fits_every_screen(browser, tmp_path, width):
    run = measured(tmp_path)
    name = write_images(tmp_path / "a_long_name_of_a_folder_without_any_place_to_break_it")
    run.measure(attacks_at(["fgsm", "pgd_tuned"], 8 / 255, None), dataset=name)
    browser.open(run.folder.page, width)
    assert browser.js("document.documentElement.scrollWidth") <= width
    browser.js("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    inside = "[...document.querySelectorAll('pre, .scroll')].map((box) => box.scrollWidth - box.clientWidth)"
    assert max(browser.js(inside)) <= 0
    parts = (
        "[...document.querySelectorAll('figure')].map((card) => "
        "card.querySelector('svg').getBoundingClientRect().width / card.getBoundingClientRect().width)"
    )
    assert min(browser.js(parts)) > 0.9, "a chart leaves its card empty"
    assert browser.complaints == []


def test_classes_are_shown_with_the_worst_and_the_most_confused_of_many(tmp_path):
    run = measured(tmp_path)
    found, result = Overview(run), Overview(run).result()
    figures, row = result["classes"]["digits"], result["accuracy"]["digits"]
    diagonal = [counts[i] for i, counts in enumerate(figures["confusion"])]
    assert 100 * sum(diagonal) / sum(figures["images"]) == pytest.approx(row["clean"])
    assert figures["names"] == [str(digit) for digit in range(10)]
    assert figures["accuracy"] == [100 * n / of for n, of in zip(diagonal, figures["images"], strict=True)]
    text = render(found, result)
    assert f"Balanced accuracy {figures['balanced_accuracy']:.2f} %" in text
    for name, accuracy, images in zip(
        *(figures[key] for key in ("names", "accuracy", "images")), strict=True
    ):
        assert f"<tr><td>{name}</td><td>{accuracy:.2f}</td><td>{images}</td></tr>" in text
    counts = [[90 if i == j else 10 * (j == i + 1) for j in range(200)] for i in range(200)]
    counts[7] = [0] * 200  # without test images
    counts[5][9], counts[5][5] = 40, 50
    many = {"names": [f"n{i}" for i in range(200)], "accuracy": class_accuracies(counts), "confusion": counts}
    text = render(found, result | {"classes": {"digits": figures | many | {"images": [*map(sum, counts)]}}})
    assert '<td>n5</td><td class="words">n9</td><td>40</td><td>40.00</td>' in text
    assert "<tr><td>n5</td><td>50.00</td>" in text
    assert "Accuracy of the other 190 classes" in text
    assert "<span>n7 –</span>" in text
    assert len(text) < 300_000


@pytest.fixture
def printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[Result], str]:
    """A function that returns the output of `print_result` for a result."""

    def show(result: Result) -> str:
        RunFolder(tmp_path).result.write_text(json.dumps(result))
        print_result(RunFolder(tmp_path))
        return capsys.readouterr().out

    return show


def test_the_printed_tables_hold_the_figures_of_the_result(tmp_path, printed):
    result = json.loads((measured_original() / "result.json").read_text())
    text, row = printed(result), result["accuracy"]["digits"]
    line = next(line for line in text.splitlines() if line.startswith("digits "))
    assert line.split() == ["digits", *(f"{row[key]:.2f}" for key in ("clean", "fgsm", "pgd"))]
    assert "worst case" in text
    assert str(tmp_path / "report.html") in text.replace("\n", "")
    row = next(row for row in result["attacks"] if row["name"] == "fgsm") | {"accuracy": 12.34}
    assert "12.34" not in printed(result | {"attacks": [row]})  # it has a column
    assert "12.34" in printed(result | {"attacks": [row | {"name": "pgd_tuned"}]})
    tested = result["protocol"]["images"]["digits"]["test"]
    for images, said in ((None, False), (tested, False), (7, True)):
        result["config"]["evaluation"]["images"] = images
        assert ("attacks at eps 0.02 on 7 images" in printed(result)) == said
    result["config"]["evaluation"]["eps"] = []
    assert "accuracy in percent of test images\n" in printed(result)
    worst = next(row for row in result["attacks"] if row["name"] == "worst_case")
    result["attacks"].append(worst | {"eps": 0.5, "of": ["fgsm"], "accuracy": 3.21})
    assert "3.21" not in printed(result), "FGSM alone is called a worst case"


def test_attacks_are_rows_and_eps_columns_grouped_by_images(capsys):
    tuned = {"name": "pgd_tuned", "eps": 0.1, "images": 8, "accuracy": 10.0, "clean": 95.0}
    fgsm = tuned | {"name": "fgsm", "accuracy": 20.0}
    worst = [tuned | {"name": "worst_case", "accuracy": accuracy} for accuracy in (30.0, 9.0, 40.0)]
    on_all = fgsm | {"images": 1000, "clean": 90.0}
    print_attacks("digits", [tuned, tuned | {"eps": 0.02, "accuracy": 90.0}, fgsm, on_all, *worst])
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split() for line in lines] == [
        ["attack", "images", "0.02", "0.1"],
        ["none", "1,000", "90.00", "90.00"],
        ["FGSM", "1,000", "–", "20.00"],
        ["none", "8", "95.00", "95.00"],
        ["PGD", "tuned", "8", "90.00", "10.00"],
        ["FGSM", "8", "–", "20.00"],
        ["worst", "case", "8", "–", "9.00"],
    ]


def test_probes_show_the_last_and_the_best_epoch(tmp_path, capsys):
    part = measure_probe(measured(tmp_path), "digits")
    print_probes([part])
    shown = [two_decimals(part.figures[name]) for name in ("accuracy", "best_accuracy")]
    assert capsys.readouterr().out.splitlines()[-1].split()[:4] == ["digits", "355", *shown]
