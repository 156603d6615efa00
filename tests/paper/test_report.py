"""The report: its content, the escaping of all text, and its compilation by LaTeX."""

import csv
import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from grids import table
from made_up import SCHEDULE, edit, fill, note_failure, paper_plan, shifted

from intnacl.paper import published, record
from intnacl.paper.cells import read_cells
from intnacl.paper.grid import PAPER, pick, tables_of
from intnacl.paper.plan import Job, make_plan
from intnacl.paper.report import (
    MINUTES,
    TEX_COMPARED,
    TEX_SPECIAL,
    TEX_WIDTH,
    as_script,
    column_groups,
    distinct,
    escape_latex,
    file_names,
    markdown_code,
    minutes_note,
    write_report,
)
from intnacl.paper.run_names import canonical
from intnacl.paper.tables import Row, Table
from intnacl.runs.page import escape_markdown
from intnacl.runs.resolve import resolve

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'`|*_$x^2$\\input{x}%&{{7*7}}<<7*7>>"
)
PAGES = ("report.html", "report.md", "report.tex")


def not_simclr(job: Job) -> bool:
    return job.config.loss != canonical(resolve()).loss


def report_of(results: Path) -> dict[str, str]:
    """Return the text of every page and of the CSV."""
    return {path.name: path.read_text() for path in write_report(results, results / "out")
            if path.suffix not in (".png", ".svg")}  # fmt: skip


def lines_of(report: dict[str, str]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(report["results.csv"])))


class Page(HTMLParser):
    """The tags and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("results")
    plan = paper_plan(("2", "figure1", "more_epochs"), [0, 1])
    fill(results, plan, shifted(-1.0), skip=lambda job: job.config.loss.num_positives == 4)
    return results


@pytest.fixture(scope="module")
def written(results: Path) -> dict[str, str]:
    return report_of(results)


def test_all_files_are_written_and_equal_results_give_equal_files(results, written, tmp_path):
    again = write_report(results, tmp_path)
    assert {path.name for path in again} == {*PAGES, "results.csv", "figure1.svg", "figure1.png"}
    assert all(path.read_bytes() == (results / "out" / path.name).read_bytes() for path in again)


@pytest.mark.parametrize("name", PAGES)
def test_measured_and_published_values_are_shown_with_the_coverage(written, name):
    """The coverage is 56 figures of Table 2 without M = 4, 8 of Figure 1 and 60 of long runs."""
    seeds, of_paper = ("(2)", "(5)") if name == "report.tex" else ("(n = 2)", "(n = 5)")
    for text in ("53.69", "59.85", "76.34", "missing", f" {seeds}", f"0.25 {of_paper}", "124 of the 440"):
        assert text in re.sub(r"\$\\pm\$|\}", "", written[name])


def test_a_figure_in_several_cells_counts_once(tmp_path, capsys):
    """The figure over λ shows M = 1, which has no λ, in five cells; Table 2 and Figure 1 show it too.

    Table 2 has it over two seeds, Figure 1 over one of them. Runs on fewer images do not count.
    """
    some = paper_plan(("2",), [0, 1, 2], **{"evaluation.images": 1000})
    for plan, scale in ((paper_plan(("2", "figure_lambda"), [0, 1]), "paper"), (some, "some")):
        fill(tmp_path, plan, shifted(), skip=not_simclr, scale=scale)
    record.write(tmp_path, paper_plan(("figure1",), [0]), scale="paper", overrides={})
    assert [cell.n for cell in distinct(read_cells(tmp_path)[0])] == [2, 2, 2, 2]
    # SimCLR: clean and FGSM, on CIFAR-100 and CIFAR-10
    assert "Of 4 figures with a published value" in report_of(tmp_path)["report.md"]
    assert capsys.readouterr().out.startswith("4 of the 440 figures")


@pytest.mark.parametrize("name", PAGES)
def test_every_finished_run_is_listed_with_its_seconds(tmp_path, name):
    plan = make_plan([table()], [0, 1])
    fill(tmp_path, plan, shifted(), skip=lambda job: job.config.seed == 1)
    done, missing = (job.name for job in plan.jobs)

    def change(result: dict[str, Any], _: int) -> None:
        result["time_s"] = {"pretrain": 60.0, "attack digits": 1.04, "attack other": 2.2, "total": 63.24}
        result["protocol"]["hardware"] = {"gpu": "some GPU", "cpu": "some CPU"}

    edit(tmp_path, change)
    text = re.sub(r"<[^>]*>", " ", report_of(tmp_path)[name])
    section = text.split("Where the time went")[-1].split("some GPU")[0]
    assert done in section
    assert re.findall(r"\s(\d+\.\d)\s", section) == ["60.0", "3.2", "63.2"]
    assert missing not in section


def test_a_table_with_minutes_explains_them(tmp_path):
    fill(tmp_path, paper_plan(("main", "2"), [0, 1]), shifted())
    timed, other = read_cells(tmp_path)[0]
    assert re.match(rf"{MINUTES} The paper's own.* 211 min", minutes_note(timed))
    assert minutes_note(other) == ""
    assert minutes_note(replace(timed, departures=["fewer epochs"])) == MINUTES


@pytest.mark.parametrize(("units", "close"), [(1.9, 4), (2.1, 0)])
def test_close_is_within_two_spreads(tmp_path, units, close):
    """With one seed, the spread is the paper's."""

    def accuracy(job: Job, dataset: str, metric: str) -> float:
        value = published.find(job.config, dataset, metric)
        return value.mean + units * value.sd if value and value.sd else 50.0

    fill(tmp_path, paper_plan(("2",), [0]), accuracy, skip=not_simclr)
    assert f"each counted once, {close} lie within 2.0 units" in report_of(tmp_path)["report.md"]


def test_the_page_is_self_contained(written):
    text = written["report.html"]
    attributes = [item for _, attrs in Page(text).tags for item in attrs.items()]
    links = [value for key, value in attributes if key in ("src", "href", "action")]
    assert all(value and value.startswith(("#", "data:")) for value in links)
    assert not re.search(r"url\((?!#)", text)
    assert not re.search(r"@import|fetch\(|XMLHttpRequest|WebSocket", text)


def test_cells_have_their_colours(written):
    page = Page(written["report.html"])
    cells = [attrs for tag, attrs in page.tags if tag == "td" and "data-status" in attrs]
    assert {attrs["class"] for attrs in cells} >= {"below", "below-much", "missing"}
    for attrs in cells:
        if "data-units" in attrs:
            units = float(attrs["data-units"] or "nan")
            much = "-much" if abs(units) >= 2 else ""
            side = ("above" if units > 0 else "below") + much
            assert attrs["class"] == ("near" if abs(units) < 1 else side)


def test_the_csv_is_tidy(written):
    lines = lines_of(written)
    assert len(lines) == 2 * (80 + 28 + 66)
    assert {line["status"] for line in lines} == {"finished", "missing"}
    first = lines[0]
    assert (first["table"], first["row"], first["metric"], first["seed"]) == ("table2", "M = 1", "clean", "0")
    assert (first["published_mean"], first["paper_setting"]) == ("53.69", "True")
    assert {(line["seeds"], line["published_seeds"]) for line in lines} == {
        ("2", "5"), ("0", "5"), ("2", ""),
    }  # fmt: skip
    assert float(first["value"]) == pytest.approx(52.69, abs=1.5)


@pytest.mark.parametrize(
    ("counts", "shown"),
    [((1000, 1000), ", 1,000 images"), ((1000, 10_000), ", 1,000 or 10,000 images"), ((10_000, 10_000), "")],
)
def test_a_figure_states_its_number_of_images(tmp_path, counts, shown):
    fill(tmp_path, paper_plan(("main",), [0, 1]), shifted(), skip=not_simclr)
    row = {"dataset": "cifar100", "name": "autoattack", "eps": 0.002, "accuracy": 20.0, **SCHEDULE}
    edit(tmp_path, lambda result, i: result["attacks"].append(row | {"images": counts[i]}))
    report = report_of(tmp_path)
    assert f"| 20.00 ± 0.00 (n = 2){shown} |" in report["report.md"]
    assert report["report.md"].count(" images |") == bool(shown)
    said = [line["images"] for line in lines_of(report) if line["metric"] == "autoattack" and line["value"]]
    assert said == ([str(count) for count in counts] if shown else ["", ""])


def test_tiny_runs_are_labelled_and_not_compared(tmp_path):
    tiny = tables_of("tiny")
    plan = make_plan(pick(tiny, ("2", "supervised")), [0], universe=tiny)
    fill(tmp_path, plan, shifted(), scale="tiny")
    report = report_of(tmp_path)
    for name in PAGES:
        assert report[name].count("A check of the machinery, not of the paper") == 2
        assert "53.69" not in report[name]
        assert "spreads below" not in report[name]
    assert {(line["published_mean"], line["paper_setting"]) for line in lines_of(report)} == {("", "False")}


@pytest.mark.parametrize(
    ("name", "notice"),
    [
        ("report.html", "Not the paper&#39;s setting:</b> data set digits."),
        ("report.md", "**Not the paper's setting:** data set digits."),
        ("report.tex", r"\textbf{Not the paper\textquotesingle{}s setting:} data set digits."),
    ],
)
def test_a_users_grid_is_not_called_a_check_of_the_machinery(tmp_path, name, notice):
    fill(tmp_path, make_plan([table()], [0]), shifted(), scale="my_grid")
    report = report_of(tmp_path)
    assert notice in report[name]
    assert "A check of the machinery" not in report[name]


def fail(results: Path, grid: Table, error: str) -> None:
    """Write the record of a grid whose first run failed."""
    plan = make_plan([grid], [0])
    record.write(results, plan, scale="paper", overrides={})
    note_failure(results, plan.jobs[0], error, "s")


def test_hostile_names_and_errors_are_escaped(tmp_path):
    plain = table()
    odd = replace(
        plain, name=HOSTILE, title=HOSTILE, figure="curves", x_label=HOSTILE,
        rows=tuple(replace(row, label=HOSTILE, group=HOSTILE) for row in plain.rows),
        columns=tuple(replace(column, label=HOSTILE, panel=HOSTILE, x=1.0) for column in plain.columns),
    )  # fmt: skip
    fail(tmp_path, odd, HOSTILE)
    report = report_of(tmp_path)
    page = Page(report["report.html"])
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert "img" not in {tag for tag, _ in page.tags}
    assert not [key for _, attrs in page.tags for key in attrs if key.startswith("on")]
    assert HOSTILE in "".join(page.texts)  # shown as it is
    assert not re.search("<script|<img", report["report.md"])
    assert "\\input" not in report["report.tex"]
    assert all(path.parent == tmp_path / "out" for path in (tmp_path / "out").rglob("*"))


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1", "@x"])
def test_a_spreadsheet_gets_no_formula(tmp_path, cell):
    fail(tmp_path, replace(table(), rows=(Row(label=cell),)), "")
    (line,) = lines_of(report_of(tmp_path))
    assert line["row"] == f"'{cell}"


def test_markdown_is_escaped_but_a_command_can_be_copied():
    assert escape_markdown("a|b*c_<d>\n`e`") == r"a\|b\*c\_&lt;d&gt; \`e\`"
    command = "intnacl run --set train.batch_size=128 'a*b'"
    assert markdown_code(command) == f"`{command}`"
    for odd in ("a`b", "a|b", "<b>", "a\nb"):
        assert markdown_code(odd) == escape_markdown(odd)


def test_every_table_has_a_distinct_file_name():
    keys = ["a b", "a-b", "A b", "table2 tiny", "λ" * 300, "λ" * 299 + "μ"]
    names = file_names(keys)
    assert (names["a b"], names["table2 tiny"]) == ("a-b", "table2-tiny")
    assert len({name.casefold() for name in names.values()}) == len(keys)
    assert all(len(f".{name}.png.12345678".encode()) < 255 for name in names.values())


def test_a_browser_can_read_nan_and_infinity():
    text = as_script({"a": [float("nan"), float("inf"), 1.5], "b": "<x>"})
    assert json.loads(text, parse_constant=pytest.fail) == {"a": ["NaN", "Infinity", 1.5], "b": "<x>"}


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        (r"50% & \x{y}_1^2 ± λ", r"50\% \& \textbackslash{}x\{y\}\_1\textasciicircum{}2 $\pm$ $\lambda$"),
        ("--set 'a'", r"-{}-set \textquotesingle{}a\textquotesingle{}"),
        ("a---b-c", "a-{}-{}-b-c"),
        ("Zürich\n\tŵ", "Zürich  ŵ"),
        ("数\x00ħ", "[U+6570][U+0000][U+0127]"),
    ],
)
def test_text_is_escaped_for_latex(text, escaped):
    assert escape_latex(text) == escaped


def test_columns_are_split_into_groups_that_fit_a_page(tmp_path):
    record.write(tmp_path, make_plan(PAPER, [0], universe=PAPER), scale="paper", overrides={})
    parts = {filled.key: (filled, column_groups(filled)) for filled in read_cells(tmp_path)[0]}
    for filled, found in parts.values():
        columns = [pair for part in found for pair in part]
        assert [place for place, _ in columns] == list(range(len(filled.columns)))
        for place, compared in columns:
            assert compared == any(row[place].published for row in filled.cells)
    assert [len(part) for part in parts["table2"][1]] == [TEX_WIDTH // TEX_COMPARED]
    assert [len(part) for part in parts["figure_eps"][1]] == [5]  # one of its columns is the paper's


def compile_pdf(folder: Path) -> str:
    """Compile report.tex twice, because longtable needs it for its widths; return the second log."""
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not installed")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "report.tex"]
    for _ in range(2):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
        assert done.returncode == 0, done.stdout[-2000:]
    assert (folder / "report.pdf").read_bytes().startswith(b"%PDF")
    return (folder / "report.log").read_text(errors="replace")


@pytest.mark.slow
def test_the_report_of_the_paper_compiles_and_fits(tmp_path):
    plan = make_plan(PAPER, [0, 1], universe=PAPER)
    fill(tmp_path, plan, shifted(-0.5), skip=lambda job: job.config.loss.num_positives == 4)
    report_of(tmp_path)
    log = compile_pdf(tmp_path / "out")
    assert re.findall(r"Overfull .*|LaTeX Warning.*|Missing character.*", log) == []


@pytest.mark.slow
def test_any_text_compiles(tmp_path):
    odd = "–—‘’“”… 数 \U0001f600 \\input{x} \\end{document}"
    text = "".join(TEX_SPECIAL) + "".join(map(chr, range(0x250))) + odd
    plain = table(rows=2)
    rows = tuple(replace(row, label=text[-60:], group=text[-80:]) for row in plain.rows)
    fail(tmp_path, replace(plain, title=text, rows=rows), f"{text} {'/a-long-path' * 30}")
    report_of(tmp_path)
    assert "Missing character" not in compile_pdf(tmp_path / "out")
