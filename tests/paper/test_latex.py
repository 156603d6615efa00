"""LaTeX: text is printed as it is, tables fit, and the whole report compiles."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from grids import table
from made_up import fill, shifted

from intnacl.paper import record
from intnacl.paper.attempts import run_folder
from intnacl.paper.cells import read_cells
from intnacl.paper.grid import PAPER
from intnacl.paper.plan import make_plan
from intnacl.paper.report import (
    TEX_COMPARED,
    TEX_SPECIAL,
    TEX_WIDTH,
    escape_latex,
    side_by_side,
    write_report,
)

needs_latex = pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")


def compile_pdf(folder: Path) -> str:
    """Compile report.tex twice, so that longtable knows its widths; returns the log of the second time."""
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "report.tex"]
    for _ in range(2):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
        assert done.returncode == 0, done.stdout[-2000:]
    assert (folder / "report.pdf").read_bytes().startswith(b"%PDF")
    return (folder / "report.log").read_text(errors="replace")


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
def test_text_is_escaped(text: str, escaped: str) -> None:
    assert escape_latex(text) == escaped


def test_as_many_columns_stand_side_by_side_as_there_is_room_for(tmp_path: Path) -> None:
    plan = make_plan(PAPER, [0], universe=PAPER)
    record.write(tmp_path, plan, scale="paper", overrides={})
    views, _ = read_cells(tmp_path)
    for view in views:
        assert [place for part in side_by_side(view) for place, _ in part] == list(range(len(view.columns)))
        for place, compared in (pair for part in side_by_side(view) for pair in part):
            assert compared == any(row[place].published for row in view.cells)
    widths = {view.key: [len(part) for part in side_by_side(view)] for view in views}
    assert widths["table2"] == [TEX_WIDTH // TEX_COMPARED]
    assert widths["figure_eps"] == [5]  # one of its columns is the paper's


@pytest.mark.slow
@needs_latex
def test_the_report_of_the_paper_compiles_and_fits(tmp_path: Path) -> None:
    plan = make_plan(PAPER, [0, 1], universe=PAPER)
    fill(tmp_path, plan, shifted(-0.5), skip=lambda job: job.config.loss.num_positives == 4)
    write_report(tmp_path, tmp_path / "out")
    log = compile_pdf(tmp_path / "out")
    assert re.findall(r"Overfull .*|LaTeX Warning.*|Missing character.*", log) == []


@pytest.mark.slow
@needs_latex
def test_any_text_compiles(tmp_path: Path) -> None:
    text = (
        "".join(TEX_SPECIAL)
        + "".join(map(chr, range(0x250)))
        + "–—‘’“”… 数 \U0001f600 \\input{x} \\end{document}"
    )
    plain = table(rows=2)
    rows = tuple(replace(row, label=text[-60:], group=text[-80:]) for row in plain.rows)
    odd = replace(plain, title=text, rows=rows)
    plan = make_plan([odd], [0])
    record.write(tmp_path, plan, scale="paper", overrides={})
    folder = run_folder(tmp_path, plan.jobs[0].name)
    folder.path.mkdir(parents=True)
    noted = {"error": f"{text} {'/a-long-path' * 30}", "tries": {"s": 3}, "given_up": ["s"]}
    folder.failure.write_text(json.dumps(noted))
    write_report(tmp_path, tmp_path / "out")
    assert "Missing character" not in compile_pdf(tmp_path / "out")
