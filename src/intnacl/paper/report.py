"""The report of a results folder: Markdown, LaTeX, one self-contained HTML page, figures, a tidy CSV."""

import csv
import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intnacl.files import write_file
from intnacl.paper import figures, published
from intnacl.paper.cells import Cell, Run, View, collect
from intnacl.paper.claims import Judgement, measured_claims
from intnacl.paper.latex import escape_latex, parts
from intnacl.paper.run_names import training_key

LONGEST_NAME = 50  # characters of a file's name, which may take four bytes each
STAGES = {
    "compile": "compilation", "pretrain": "pretraining", "pauses": "its kNN and checkpoints",
    "probe": "probe", "knn": "kNN", "attack": "attacks", "total": "in all",
}  # fmt: skip
MINUTES = "Minutes are the least of the seeds'; runs that shared their device with others have none."
STRONG, WEAK = 2.0, 1.0  # units of the pooled spread from which a difference is coloured


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that the templates show."""

    views: list[View]
    runs: dict[str, Run]
    claims: list[Judgement]
    drawings: dict[str, str]
    """Table key -> SVG."""
    names: dict[str, str]
    """Table key -> its name in the page, and of its figure's files without their ending."""


def write_report(results: Path, out: Path) -> list[Path]:
    """Write the report of `results` below `out`; returns the files."""
    views, runs = collect(results)
    drawings, names, written = {}, file_names([view.key for view in views]), []
    for view in views:
        if view.figure:
            drawings[view.key], png = figures.draw(view)
            written += _put(out / f"{names[view.key]}.svg", drawings[view.key].encode())
            written += _put(out / f"{names[view.key]}.png", png)
    claims = measured_claims(runs)
    report = Report(views=views, runs=runs, claims=claims, drawings=drawings, names=names)
    for name, escape in (("report.md", escape_markdown), ("report.tex", escape_latex), ("report.html", None)):
        written += _put(out / name, render(name, report, escape).encode())
    return written + _put(out / "results.csv", tidy(views).encode())


def render(name: str, report: Report, escape: Callable[[str], str] | None) -> str:
    """A template with the report's content; what comes from run folders and grids is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    marks: dict[str, Any] = {
        "block_start_string": "<%", "block_end_string": "%>", "variable_start_string": "<<",
        "variable_end_string": ">>", "comment_start_string": "<#", "comment_end_string": "#>",
    }  # fmt: skip
    environment = Environment(
        loader=PackageLoader("intnacl.paper"), undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, autoescape=escape is None, keep_trailing_newline=True, **marks,
    )  # fmt: skip
    environment.filters |= {"text": escape or str, "number": number, "value": value, "signed": signed}
    environment.filters |= {"images": images, "shade": shade, "script": as_script, "code": markdown_code}
    environment.globals |= {
        "data": cells_data,
        "minutes_note": minutes_note,
        "strong": STRONG,
        "weak": WEAK,
        "parts": parts,
        "stages": STAGES,
    }
    return environment.get_template(f"{name}.j2").render(report=report, **summary(report))


def summary(report: Report) -> dict[str, Any]:
    """Counts for the head of the report."""
    runs = list(report.runs.values())
    cells = [cell for view in report.views for row in view.cells for cell in row]
    compared = [cell.units for cell in distinct(report.views) if cell.units is not None]
    return {
        "finished": [run for run in runs if run.status == "finished"],
        "failed": [run for run in runs if run.status == "failed"],
        "measured": sum(cell.mean is not None for cell in cells),
        "cells": len(cells),
        "compared": len(compared),
        "close": sum(abs(units) < STRONG for units in compared),
    }


def distinct(views: Sequence[View]) -> list[Cell]:
    """Cells that are compared, each figure once, over the most seeds: tables share runs, some with fewer."""
    found: dict[tuple[Any, ...], Cell] = {}
    for view in views:
        for column, cell in (pair for row in view.cells for pair in zip(view.columns, row, strict=True)):
            if cell.units is not None:
                run = next(iter(cell.runs.values()))
                key = (training_key(run.config), cell.dataset, column["metric"], _eps(column, run))
                found[key] = max(found.get(key, cell), cell, key=lambda cell: cell.n)
    return list(found.values())


def _eps(column: Mapping[str, Any], run: Run) -> float | None:
    """The radius of a column's attack; None: there is none."""
    if column["metric"] in ("clean", "minutes"):
        return None
    return float(run.config.evaluation.eps[0] if column["eps"] is None else column["eps"])


def number(cell: Cell) -> str:
    """53.69 ± 0.25 (5)."""
    if cell.mean is None:
        return cell.status
    spread = "" if cell.sd is None else f" ± {cell.sd:.2f}"
    of = "" if cell.status == "measured" else f" of {len(cell.runs)}"
    return f"{cell.mean:.2f}{spread} ({cell.n}{of})"


def images(cell: Cell) -> str:
    """1,000 images."""
    return " or ".join(f"{count:,}" for count in sorted(set(cell.images.values()))) + " images"


def value(of_paper: published.Value) -> str:
    """53.69 ± 0.25."""
    return f"{of_paper.mean:.2f}" + ("" if of_paper.sd is None else f" ± {of_paper.sd:.2f}")


def signed(value: float) -> str:
    """+1.2 or −1.2, with a minus sign that aligns."""
    return f"{value:+.1f}".replace("-", "−")


def shade(cell: Cell) -> str:
    """The class of a cell's colour: above, below, near or none."""
    if cell.units is None:
        return cell.status if cell.mean is None else "none"
    if abs(cell.units) < WEAK:
        return "near"
    return ("above" if cell.units > 0 else "below") + ("-much" if abs(cell.units) >= STRONG else "")


def minutes_note(view: View) -> str:
    """What a cell's minutes are; the paper's are another machine's, so they stand apart from the cells."""
    if not any(column["metric"] == "minutes" for column in view.columns):
        return ""
    paper = f" The paper's own training times, on its machine: {published.training_times()}."
    return f"{MINUTES}{'' if view.departures else paper}"


def escape_markdown(text: str) -> str:
    """Text that Markdown shows as it is, also inside tables, and that is no HTML."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")
    for character in "\\`*_[]|#":
        text = text.replace(character, f"\\{character}")
    return text


def markdown_code(text: str) -> str:
    """Text to be copied, without backslashes in it; what a code span cannot hold in a table is escaped."""
    return escape_markdown(text) if set(text) & set("`|<>&\n") else f"`{text}`"


def cells_data(report: Report) -> dict[str, Any]:
    """What the page tells about the runs behind a cell."""
    runs = {
        run.name: {
            "status": run.status, "command": run.command, "choices": run.choices, "error": run.error,
            "departures": run.departures, "protocol": (run.result or {}).get("protocol"),
            "time_s": (run.result or {}).get("time_s"),
        }
        for run in report.runs.values()
    }  # fmt: skip
    cells = {
        f"{report.names[view.key]}-{i}-{j}": [
            [seed, run.name, cell.values.get(seed)] for seed, run in cell.runs.items()
        ]
        for view in report.views
        for i, row in enumerate(view.cells)
        for j, cell in enumerate(row)
    }
    return {"runs": runs, "cells": cells}


COLUMNS = (
    "table", "group", "row", "column", "dataset", "metric", "eps", "seed", "run", "status", "value",
    "published_mean", "published_sd", "paper_setting", "images",
)  # fmt: skip


def tidy(views: list[View]) -> str:
    """One line for every table, cell and seed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for view in views:
        for row, cells in zip(view.rows, view.cells, strict=True):
            for column, cell in zip(view.columns, cells, strict=True):
                for seed, run in cell.runs.items():
                    writer.writerow(map(_guarded, _line(view, row, column, cell, seed, run)))
    return text.getvalue()


def _line(view: View, row: Any, column: Any, cell: Cell, seed: str, run: Run) -> tuple[Any, ...]:
    mean, sd = cell.published or ("", "")
    eps = _eps(column, run)
    return (
        view.key, row["group"], row["label"], column["label"], cell.dataset, column["metric"],
        "" if eps is None else eps, seed, run.name, run.status,
        cell.values.get(seed, ""), mean, "" if sd is None else sd, not run.departures,
        cell.images.get(seed, ""),
    )  # fmt: skip


def _guarded(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula gets an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t")) else value


def file_names(keys: list[str]) -> dict[str, str]:
    """A name for each key that any file system takes; a digest tells apart those that would be the same."""
    names: dict[str, str] = {}
    for key in keys:
        name = "".join(c if c.isalnum() or c in "._" else "-" for c in key)
        taken = name.casefold() in {other.casefold() for other in names.values()}
        short = f"{name[:LONGEST_NAME]}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
        names[key] = short if taken or len(name.encode()) > LONGEST_NAME else name
    return names


def _put(path: Path, content: bytes) -> list[Path]:
    write_file(path, content)
    return [path]


def as_script(data: Any) -> str:
    """JSON that may stand inside a script element; NaN and infinities, which browsers refuse, as text."""
    data = json.loads(json.dumps(data), parse_constant=str)
    return json.dumps(data, ensure_ascii=False).replace("<", "\\u003c").replace("&", "\\u0026")
