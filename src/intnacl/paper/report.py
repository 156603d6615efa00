"""The report of a results folder: Markdown, LaTeX, a self-contained HTML page, figures, a tidy CSV."""

import csv
import hashlib
import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intnacl.files import write_file
from intnacl.paper import figures, published
from intnacl.paper.cells import Cell, FilledTable, RecordedRun, read_cells
from intnacl.paper.claims import Judgement, measured_claims
from intnacl.paper.run_names import training_key
from intnacl.paper.tables import NOT_ATTACKED, Column
from intnacl.runs.page import escape_markdown, template_environment

LONGEST_NAME = 50  # characters of a file's name, of up to four bytes each
STAGES = {
    "compile": "compilation", "pretrain": "pretraining", "pauses": "monitoring and checkpoints",
    "probe": "probe", "knn": "kNN", "attack": "attacks", "total": "total",
}  # fmt: skip
MINUTES = "Minutes are those of the fastest seed; runs that shared their device with others are not counted."
COVERED = "{} of the {} figures that the paper prints have a measured value beside them."
STRONG, WEAK = 2.0, 1.0  # units of the pooled spread above which a difference is coloured strongly or weakly
CSV_COLUMNS = (
    "table", "group", "row", "column", "dataset", "metric", "eps", "seed", "run", "status", "value",
    "published_mean", "published_sd", "paper_setting", "images", "seeds", "published_seeds",
)  # fmt: skip
TEX_WIDTH, TEX_COMPARED, TEX_ALONE = 12, 3, 2  # width of a page, of a column with published values, without
TEX_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "`": r"\textasciigrave{}", "'": r"\textquotesingle{}",
    "/": r"\slash{}",  # lets a long path break
    "±": r"$\pm$", "−": "$-$", "·": r"$\cdot$", "→": r"$\to$", "≤": r"$\leq$", "≥": r"$\geq$",
    "≈": r"$\approx$", "∞": r"$\infty$", "α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$",
    "δ": r"$\delta$", "ε": r"$\varepsilon$", "η": r"$\eta$", "θ": r"$\theta$", "λ": r"$\lambda$",
    "μ": r"$\mu$", "π": r"$\pi$", "ρ": r"$\rho$", "σ": r"$\sigma$", "τ": r"$\tau$", "φ": r"$\varphi$",
    "ω": r"$\omega$",
}  # fmt: skip
TEX_UNKNOWN = "¸ĦħĸĿŀŉŦŧſ"  # characters below U+0180 that the T1 fonts lack


@dataclass(frozen=True, kw_only=True)
class Report:
    """The content of the templates."""

    tables: list[FilledTable]
    runs: dict[str, RecordedRun]
    claims: list[Judgement]
    drawings: dict[str, str]
    """Table key -> SVG."""
    names: dict[str, str]
    """Table key -> its name on the page, which is also the stem of its figure's files."""


def write_report(results: Path, out: Path) -> list[Path]:
    """Write the report of `results` below `out`, print its coverage of the paper, and return its files."""
    tables, runs = read_cells(results)
    names = file_names([table.key for table in tables])
    drawings: dict[str, str] = {}
    content: dict[str, bytes] = {}
    for table in tables:
        if table.figure:
            svg, png = figures.draw(table)
            drawings[table.key] = svg
            content |= {
                f"{names[table.key]}.svg": svg.encode("utf-8", "backslashreplace"),
                f"{names[table.key]}.png": png,
            }
    claims = measured_claims(runs)
    report = Report(tables=tables, runs=runs, claims=claims, drawings=drawings, names=names)
    for name, escape in (("report.md", escape_markdown), ("report.tex", escape_latex), ("report.html", None)):
        content[name] = render(name, report, escape).encode("utf-8", "backslashreplace")
    content["results.csv"] = tidy(tables).encode("utf-8", "backslashreplace")
    for name, text in content.items():
        write_file(out / name, text)
    print(COVERED.format(len(printed_and_measured(tables)), len(published.values())))
    return [out / name for name in content]


def render(name: str, report: Report, escape: Callable[[str], str] | None) -> str:
    """Fill a template with the report's content; text from run folders and grids is escaped."""
    environment = template_environment(
        "intnacl.paper",
        autoescape=escape is None,
        keep_trailing_newline=True,
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
    )
    environment.filters |= {
        "text": escape or str,
        "number": number,
        "value": value,
        "signed": signed,
        "images": images,
        "shade": shade,
        "script": as_script,
        "code": markdown_code,
    }
    runs = list(report.runs.values())
    cells = [cell for table in report.tables for row in table.cells for cell in row]
    compared = [cell.units for cell in distinct(report.tables) if cell.units is not None]
    return environment.get_template(f"{name}.j2").render(
        report=report,
        data=cells_data,
        minutes_note=minutes_note,
        parts=column_groups,
        strong=STRONG,
        weak=WEAK,
        stages=STAGES,
        finished=[run for run in runs if run.status == "finished"],
        failed=[run for run in runs if run.status == "failed"],
        measured=sum(cell.mean is not None for cell in cells),
        cells=len(cells),
        covered=COVERED.format(len(printed_and_measured(report.tables)), len(published.values())),
        compared=len(compared),
        close=sum(abs(units) < STRONG for units in compared),
    )


def distinct(tables: Sequence[FilledTable]) -> list[Cell]:
    """Return the compared cells, each figure once.

    Tables share runs: of several cells with the same figure, the one with the most seeds is returned.
    """
    found: dict[tuple[Any, ...], Cell] = {}
    for table in tables:
        for column, cell in (pair for row in table.cells for pair in zip(table.columns, row, strict=True)):
            if cell.units is not None:
                run = next(iter(cell.runs.values()))
                key = (training_key(run.config), cell.dataset, column.metric, radius(column, run))
                found[key] = max(found.get(key, cell), cell, key=lambda cell: cell.n)
    return list(found.values())


def printed_and_measured(tables: Sequence[FilledTable]) -> set[published.Key]:
    """Return the figures of the paper for which a table has a measured value, each once."""
    return {
        key
        for table in tables
        for row in table.cells
        for column, cell in zip(table.columns, row, strict=True)
        for run in list(cell.runs.values())[:1]
        if cell.published is not None and cell.mean is not None
        if (key := published.figure_key(run.config, cell.dataset, column.metric, column.eps)) is not None
    }


def radius(column: Column, run: RecordedRun) -> float | None:
    """Return the radius of a column's attack; None if it has no attack."""
    if column.metric in NOT_ATTACKED:
        return None
    return float(run.config.evaluation.eps[0] if column.eps is None else column.eps)


def number(cell: Cell) -> str:
    """Write 53.69 ± 0.25 (n = 5), or (n = 2 of 5) if three of the planned seeds are missing."""
    if cell.mean is None:
        return cell.status
    spread = "" if cell.sd is None else f" ± {cell.sd:.2f}"
    of = "" if cell.status == "measured" else f" of {len(cell.runs)}"
    return f"{cell.mean:.2f}{spread} (n = {cell.n}{of})"


def images(cell: Cell) -> str:
    """Write the number of attacked images: 1,000 images."""
    return " or ".join(f"{count:,}" for count in sorted(set(cell.images.values()))) + " images"


def value(of_paper: published.Value) -> str:
    """Write a published value: 53.69 ± 0.25 (n = 5)."""
    spread = "" if of_paper.sd is None else f" ± {of_paper.sd:.2f}"
    return f"{of_paper.mean:.2f}{spread} (n = {published.TRIALS})"


def signed(value: float) -> str:
    """Write +1.2 or −1.2, with a minus sign as wide as the plus."""
    return f"{value:+.1f}".replace("-", "−")


def shade(cell: Cell) -> str:
    """Return the CSS class of a cell: above, below, near, none, or its status if it has no value."""
    if cell.units is None:
        return cell.status if cell.mean is None else "none"
    if abs(cell.units) < WEAK:
        return "near"
    return ("above" if cell.units > 0 else "below") + ("-much" if abs(cell.units) >= STRONG else "")


def minutes_note(table: FilledTable) -> str:
    """Explain a table's minutes; the paper's are of another machine, so they are given here, not in cells."""
    if not any(column.metric == "minutes" for column in table.columns):
        return ""
    paper = f" The paper's own training times, on its machine: {published.training_times()}."
    return f"{MINUTES}{'' if table.departures else paper}"


def markdown_code(text: str) -> str:
    """Return text as a code span, which can be copied; escaped if a code span in a table cannot hold it."""
    return escape_markdown(text) if set(text) & set("`|<>&\n") else f"`{text}`"


def escape_latex(text: str) -> str:
    """Escape text for LaTeX; a character that its fonts lack is replaced by its code point."""
    escaped = []
    for character in text:
        known = character.isprintable() and (character < "\u0180" or character in "–—‘’“”…")
        if character in TEX_SPECIAL or character.isspace():
            escaped.append(TEX_SPECIAL.get(character, " "))
        else:
            escaped.append(
                character if known and character not in TEX_UNKNOWN else f"[U+{ord(character):04X}]"
            )
    return re.sub("-(?=-)", "-{}", "".join(escaped))  # or LaTeX would turn two hyphens into a dash


def column_groups(table: FilledTable) -> list[list[tuple[int, bool]]]:
    """Split a table's columns into groups that each fit on a page of LaTeX.

    A column is its index in the table, and True if the paper has values for it.
    """
    found: list[list[tuple[int, bool]]] = []
    room = 0
    for place in range(len(table.columns)):
        compared = any(row[place].published for row in table.cells)
        width = TEX_COMPARED if compared else TEX_ALONE
        if width > room:
            found.append([])
            room = TEX_WIDTH
        room -= width
        found[-1].append((place, compared))
    return found


def cells_data(report: Report) -> dict[str, Any]:
    """Return the data of the runs behind each cell, which the page shows when a cell is clicked."""
    runs = {
        run.name: {
            "status": run.status,
            "command": run.command,
            "choices": run.choices,
            "error": run.error,
            "departures": run.departures,
            "protocol": (run.result or {}).get("protocol"),
            "time_s": (run.result or {}).get("time_s"),
        }
        for run in report.runs.values()
    }
    cells = {
        f"{report.names[table.key]}-{i}-{j}": [
            [seed, run.name, cell.values.get(seed)] for seed, run in cell.runs.items()
        ]
        for table in report.tables
        for i, row in enumerate(table.cells)
        for j, cell in enumerate(row)
    }
    return {"runs": runs, "cells": cells}


def tidy(tables: Sequence[FilledTable]) -> str:
    """Return the CSV, with one line for every table, cell and seed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    places = [(t, i, j) for t in tables for i in range(len(t.rows)) for j in range(len(t.columns))]
    for table, i, j in places:
        row, column, cell = table.rows[i], table.columns[j], table.cells[i][j]
        mean, sd = cell.published or ("", None)
        for seed, run in cell.runs.items():
            eps = radius(column, run)
            line = (
                table.key,
                row.group,
                row.label,
                column.label,
                cell.dataset,
                column.metric,
                "" if eps is None else eps,
                seed,
                run.name,
                run.status,
                cell.values.get(seed, ""),
                mean,
                "" if sd is None else sd,
                not run.departures,
                cell.images.get(seed, ""),
                cell.n,
                published.TRIALS if cell.published else "",
            )
            # An apostrophe keeps a spreadsheet from reading text that begins like this as a formula.
            formula = ("=", "+", "-", "@", "\t")
            writer.writerow(f"'{v}" if isinstance(v, str) and v.startswith(formula) else v for v in line)
    return text.getvalue()


def file_names(keys: list[str]) -> dict[str, str]:
    """Return a file name for each key that every file system accepts; a digest resolves collisions."""
    names: dict[str, str] = {}
    for key in keys:
        name = "".join(c if c.isalnum() or c in "._" else "-" for c in key)
        taken = name.casefold() in {other.casefold() for other in names.values()}
        short = f"{name[:LONGEST_NAME]}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
        names[key] = short if taken or len(name.encode()) > LONGEST_NAME else name
    return names


def as_script(data: Any) -> str:
    """Return JSON for a script element; NaN and infinities, which JSON lacks, become text."""
    data = json.loads(json.dumps(data), parse_constant=str)
    return json.dumps(data, ensure_ascii=False).replace("<", "\\u003c").replace("&", "\\u0026")
