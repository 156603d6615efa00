"""The report: what is in it, what must not be, and that nothing in it can act."""

import csv
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from grids import table
from made_up import fill, shifted

from intnacl.errors import InputError
from intnacl.paper import published, record
from intnacl.paper.attempts import run_folder
from intnacl.paper.cells import read_cells
from intnacl.paper.grid import PAPER, pick, tables_of
from intnacl.paper.plan import Job, make_plan
from intnacl.paper.report import (
    MINUTES,
    as_script,
    distinct,
    escape_markdown,
    file_names,
    markdown_code,
    minutes_note,
    write_report,
)
from intnacl.paper.run_names import canonical
from intnacl.runs.resolve import resolve

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'`|*_$x^2$\\input{x}%&{{7*7}}<<7*7>>"
)


def read_csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


class Page(HTMLParser):
    """Tags, scripts and texts of a page."""

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
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("results")
    plan = make_plan(pick(PAPER, ("2", "figure1", "more_epochs")), [0, 1], universe=PAPER)
    fill(results, plan, shifted(-1.0), skip=lambda job: job.config.loss.num_positives == 4)
    write_report(results, results / "out")
    return results / "out"


def test_all_files_are_there(written: Path) -> None:
    assert {path.name for path in written.iterdir()} == {
        "report.html", "report.md", "report.tex", "results.csv", "figure1.svg", "figure1.png",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["report.html", "report.md", "report.tex"])
def test_measured_stands_beside_published(written: Path, name: str) -> None:
    text = (written / name).read_text()
    for value in ("53.69", "59.85", "76.34"):
        assert value in text
    assert "missing" in text
    assert "(2)" in text


def test_a_figure_in_several_cells_counts_once(tmp_path: Path) -> None:
    """The figure over λ shows M = 1, which has none, in five cells; Table 2 and Figure 1 show it too."""
    plan = make_plan(pick(PAPER, ("2", "figure1", "figure_lambda")), [0], universe=PAPER)
    fill(tmp_path, plan, shifted(), skip=lambda job: job.config.loss != canonical(resolve()).loss)
    write_report(tmp_path, tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text()
    assert "Of 4 figures with a published value" in text  # SimCLR: clean and FGSM, on CIFAR-100 and CIFAR-10


@pytest.mark.parametrize("name", ["report.md", "report.tex", "report.html"])
def test_every_finished_run_tells_its_seconds(tmp_path: Path, name: str) -> None:
    plan = make_plan([table()], [0, 1])
    fill(tmp_path, plan, shifted(), skip=lambda job: job.config.seed == 1)
    done, missing = (job.name for job in plan.jobs)
    path = run_folder(tmp_path, done).result
    result = json.loads(path.read_text())
    result["time_s"] = {"pretrain": 60.0, "attack digits": 1.04, "attack other": 2.2, "total": 63.24}
    result["protocol"]["hardware"] = {"gpu": "some GPU", "cpu": "some CPU"}
    path.write_text(json.dumps(result))
    write_report(tmp_path, tmp_path / "out")
    text = re.sub(r"<[^>]*>", " ", (tmp_path / "out" / name).read_text())
    section = text.split("Where the time went")[-1].split("some GPU")[0]
    assert done in section
    assert re.findall(r"\s(\d+\.\d)\s", section) == ["60.0", "3.2", "63.2"]
    assert missing not in section


def test_a_table_with_minutes_says_whose_they_are(tmp_path: Path) -> None:
    plan = make_plan(pick(PAPER, ("main", "2")), [0, 1], universe=PAPER)
    fill(tmp_path, plan, shifted())
    timed, other = read_cells(tmp_path)[0]
    assert re.match(rf"{MINUTES} The paper's own.* 211 min", minutes_note(timed))
    assert minutes_note(other) == ""
    assert minutes_note(replace(timed, departures=["fewer epochs"])) == MINUTES


def test_a_figure_over_other_seeds_counts_once(tmp_path: Path) -> None:
    """Table 2 has SimCLR over two seeds, Figure 1 over one of them."""
    few = make_plan(pick(PAPER, ("figure1",)), [0], universe=PAPER)
    more = make_plan(pick(PAPER, ("2",)), [0, 1], universe=PAPER)
    fill(tmp_path, more, shifted(), skip=lambda job: job.config.loss != canonical(resolve()).loss)
    record.write(tmp_path, few, scale="paper", overrides={})
    cells = distinct(read_cells(tmp_path)[0])
    assert [cell.n for cell in cells] == [2, 2, 2, 2]


def test_runs_on_some_images_do_not_stand_in_for_the_papers(tmp_path: Path) -> None:
    simclr = canonical(resolve()).loss
    whole = make_plan(pick(PAPER, ("2",)), [0], universe=PAPER)
    some = make_plan(pick(PAPER, ("2",)), [0, 1], universe=PAPER, overrides={"evaluation.images": 1000})
    for plan, scale in ((whole, "paper"), (some, "some")):
        fill(tmp_path, plan, shifted(), skip=lambda job: job.config.loss != simclr, scale=scale)
    cells = distinct(read_cells(tmp_path)[0])
    assert [cell.n for cell in cells if cell.units is not None] == [1, 1, 1, 1]


@pytest.mark.parametrize(("units", "close"), [(1.9, 4), (2.1, 0)])
def test_close_is_within_two_spreads(tmp_path: Path, units: float, close: int) -> None:
    """One seed: the spread is the paper's."""
    plan = make_plan(pick(PAPER, ("2",)), [0], universe=PAPER)

    def accuracy(job: Job, dataset: str, metric: str) -> float:
        value = published.find(job.config, dataset, metric)
        return value.mean + units * value.sd if value and value.sd else 50.0

    fill(tmp_path, plan, accuracy, skip=lambda job: job.config.loss != canonical(resolve()).loss)
    write_report(tmp_path, tmp_path / "out")
    assert f"each counted once, {close} lie within 2.0 units" in (tmp_path / "out" / "report.md").read_text()


def test_the_page_needs_nothing_else(written: Path) -> None:
    text = (written / "report.html").read_text()
    page = Page(text)
    links = [
        value for _, attrs in page.tags for key, value in attrs.items() if key in ("src", "href", "action")
    ]
    assert all(value and value.startswith(("#", "data:")) for value in links)
    assert not re.search(r"url\((?!#)", text)
    assert not re.search(r"@import|fetch\(|XMLHttpRequest|WebSocket", text)


def test_cells_have_their_colours(written: Path) -> None:
    page = Page((written / "report.html").read_text())
    cells = [attrs for tag, attrs in page.tags if tag == "td" and "data-status" in attrs]
    assert {attrs["class"] for attrs in cells} >= {"below", "below-much", "missing"}
    for attrs in cells:
        if "data-units" in attrs:
            units = float(attrs["data-units"] or "nan")
            much = "-much" if abs(units) >= 2 else ""
            assert attrs["class"] == (
                "near" if abs(units) < 1 else ("above" if units > 0 else "below") + much
            )


def test_the_csv_is_tidy(written: Path) -> None:
    rows = read_csv(written / "results.csv")
    assert len(rows) == 2 * (80 + 28 + 66)
    assert {row["status"] for row in rows} == {"finished", "missing"}
    first = rows[0]
    assert (first["table"], first["row"], first["metric"], first["seed"]) == ("table2", "M = 1", "clean", "0")
    assert first["published_mean"] == "53.69"
    assert float(first["value"]) == pytest.approx(52.69, abs=1.5)
    assert first["paper_setting"] == "True"


@pytest.mark.parametrize(
    ("counts", "shown"),
    [((1000, 1000), ", 1,000 images"), ((1000, 10_000), ", 1,000 or 10,000 images"), ((10_000, 10_000), "")],
)
def test_a_figure_says_of_how_many_images_it_is(tmp_path: Path, counts: tuple[int, int], shown: str) -> None:
    plan = make_plan(pick(PAPER, ("main",)), [0, 1], universe=PAPER)
    simclr = canonical(resolve()).loss
    fill(tmp_path, plan, shifted(), skip=lambda job: job.config.loss != simclr)
    for path, images in zip(sorted(tmp_path.glob("runs/*/result.json")), counts, strict=True):
        result = json.loads(path.read_text())
        result["attacks"].append(
            {"dataset": "cifar100", "name": "autoattack", "eps": 0.002, "images": images, "accuracy": 20.0}
        )
        path.write_text(json.dumps(result))
    write_report(tmp_path, tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text()
    assert f"| 20.00 ± 0.00 (2){shown} |" in text
    assert text.count(" images |") == bool(shown)
    rows = read_csv(tmp_path / "out" / "results.csv")
    said = [row["images"] for row in rows if row["metric"] == "autoattack" and row["value"]]
    assert said == ([str(count) for count in counts] if shown else ["", ""])


def test_equal_results_give_equal_reports(written: Path, tmp_path: Path) -> None:
    again = write_report(written.parent, tmp_path)
    assert all(path.read_bytes() == (written / path.name).read_bytes() for path in again)


def test_tiny_runs_are_labelled_and_stand_alone(tmp_path: Path) -> None:
    tiny = tables_of("tiny")
    plan = make_plan(pick(tiny, ("2", "supervised")), [0], universe=tiny)
    fill(tmp_path, plan, shifted(), scale="tiny")
    write_report(tmp_path, tmp_path / "out")
    for name in ("report.html", "report.md", "report.tex"):
        text = (tmp_path / "out" / name).read_text()
        assert text.count("A check of the machinery, not of the paper") == 2
        assert "53.69" not in text
        assert "spreads below" not in text
    rows = read_csv(tmp_path / "out" / "results.csv")
    assert {(row["published_mean"], row["paper_setting"]) for row in rows} == {("", "False")}


def test_an_outsiders_grid_is_no_check_of_the_machinery(tmp_path: Path) -> None:
    fill(tmp_path, make_plan([table()], [0]), shifted(), scale="my_grid")
    write_report(tmp_path, tmp_path / "out")
    for name, notice in (
        ("report.html", "Not the paper&#39;s setting:</b> data set digits."),
        ("report.md", "**Not the paper's setting:** data set digits."),
        ("report.tex", r"\textbf{Not the paper\textquotesingle{}s setting:} data set digits."),
    ):
        text = (tmp_path / "out" / name).read_text()
        assert notice in text
        assert "A check of the machinery" not in text


def test_hostile_names_and_errors_do_nothing(tmp_path: Path) -> None:
    from dataclasses import replace

    plain = replace(table(), figure=None)
    odd = replace(
        plain, name=HOSTILE, title=HOSTILE, figure="curves", x_label=HOSTILE,
        rows=tuple(replace(row, label=HOSTILE, group=HOSTILE) for row in plain.rows),
        columns=tuple(replace(column, label=HOSTILE, panel=HOSTILE, x=1.0) for column in plain.columns),
    )  # fmt: skip
    plan = make_plan([odd], [0])
    record.write(tmp_path, plan, scale="paper", overrides={})
    folder = run_folder(tmp_path, plan.jobs[0].name)
    folder.path.mkdir(parents=True)
    noted = {"error": HOSTILE, "tries": {"s": 3}, "given_up": ["s"]}
    folder.failure.write_text(json.dumps(noted))
    out = tmp_path / "out"
    write_report(tmp_path, out)
    page = Page((out / "report.html").read_text())
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert "img" not in {tag for tag, _ in page.tags}
    assert not [key for _, attrs in page.tags for key in attrs if key.startswith("on")]
    assert HOSTILE in "".join(page.texts)  # shown as it is
    markdown = (out / "report.md").read_text()
    assert "<script" not in markdown
    assert "<img" not in markdown
    assert "\\input" not in (out / "report.tex").read_text()
    assert all(path.parent == out for path in out.rglob("*"))


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1", "@x"])
def test_a_spreadsheet_gets_no_formula(tmp_path: Path, cell: str) -> None:
    from dataclasses import replace

    plain = table()
    odd = replace(plain, rows=(replace(plain.rows[0], label=cell),))
    record.write(tmp_path, make_plan([odd], [0]), scale="paper", overrides={})
    write_report(tmp_path, tmp_path / "out")
    (row,) = read_csv(tmp_path / "out" / "results.csv")
    assert row["row"] == f"'{cell}"


def test_markdown_is_escaped() -> None:
    assert escape_markdown("a|b*c_<d>\n`e`") == r"a\|b\*c\_&lt;d&gt; \`e\`"


def test_a_command_can_be_copied_from_markdown() -> None:
    command = "intnacl run --set train.batch_size=128 'a*b'"
    assert markdown_code(command) == f"`{command}`"
    for odd in ("a`b", "a|b", "<b>", "a\nb"):
        assert markdown_code(odd) == escape_markdown(odd)


def test_every_table_has_a_name_of_its_own() -> None:
    keys = ["a b", "a-b", "A b", "table2 tiny", "λ" * 300, "λ" * 299 + "μ"]
    names = file_names(keys)
    assert (names["a b"], names["table2 tiny"]) == ("a-b", "table2-tiny")
    assert len({name.casefold() for name in names.values()}) == len(keys)
    assert all(len(f".{name}.png.12345678".encode()) < 255 for name in names.values())


def test_a_browser_reads_what_is_no_number() -> None:
    text = as_script({"a": [float("nan"), float("inf"), 1.5], "b": "<x>"})

    def refuse(name: str) -> None:
        raise AssertionError(name)

    assert json.loads(text, parse_constant=refuse) == {"a": ["NaN", "Infinity", 1.5], "b": "<x>"}


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    fill(tmp_path, make_plan([table()], [0]), shifted())
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/out/.* could not be written: a file stands"):
        write_report(tmp_path, tmp_path / "file" / "out")
    (tmp_path / "out" / "report.md").mkdir(parents=True)
    with pytest.raises(InputError, match=r"report.md could not be written: Is a directory"):
        write_report(tmp_path, tmp_path / "out")
