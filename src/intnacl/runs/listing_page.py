"""Many runs on one self-contained page: their learning curves in one plot, and a table of their figures."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from intnacl.errors import printable
from intnacl.files import write_text
from intnacl.plots.curves import LABELS, learning_panels
from intnacl.plots.style import COLORS
from intnacl.runs.listing import COLUMNS, best_runs, cell_text, columns_of, heading
from intnacl.runs.page import template_environment
from intnacl.runs.summary import RunSummary
from intnacl.training.journal import SPENT, records

FIRST = 12  # runs drawn when the page opens
AXES = ("epoch", "minutes")
MOST_POINTS = 300  # drawn of a curve
DASHES = ("", "7 4", "2 4", "9 3 2 3")  # each is combined with every colour before a pair repeats
NOTES = {
    "loss": "Losses of different kinds have different scales: compare them by accuracies.",
    "knn_train": "Each training image is classified by the others: this does not measure generalisation.",
}


def write_listing(runs: Sequence[RunSummary], place: Path, out: Path) -> None:
    """Write the page of runs in a folder, in the given order."""
    write_text(out, render_listing(runs, place, out))


def render_listing(runs: Sequence[RunSummary], place: Path, out: Path) -> str:
    """Return the page; its links are relative to `out`."""
    curves = [_curves(run) for run in runs]
    names = dict.fromkeys(name for one in curves for name in one if name not in AXES)
    # The figure that most runs have comes first; accuracies, which share one scale, come before losses.
    order = sorted(names, key=lambda name: (name not in LABELS, -sum(name in one for one in curves)))
    with_first = [i for i, one in enumerate(curves) if order and order[0] in one]
    used, shared = columns_of(runs)
    rows, lines = [], []
    for i, run in enumerate(runs):
        look = {"color": COLORS[i % len(COLORS)], "dash": DASHES[i // len(COLORS) % len(DASHES)]}
        page = quote(os.path.relpath(run.folder.page, out.parent)) if run.folder.page.exists() else None
        cells = [printable(cell_text(run, name)) for name in used]
        rows.append({"name": cells[0], "cells": cells[1:], "page": page, **look})
        values = [COLUMNS[name].value(run) for name in used]
        lines.append({
            "name": cells[0],
            "facts": printable(f"{run.loss}, {run.data}, seed {run.config.seed}, {run.progress}"),
            "values": [printable(value) if isinstance(value, str) else value for value in values],
            "curves": curves[i],
            **look,
        })  # fmt: skip
    thinned = any(run.epochs_done > MOST_POINTS for run in runs)
    data = {
        "figures": [(name, LABELS.get(name, name)) for name in order],
        "notes": NOTES,
        "thinned": f"Of longer curves, {MOST_POINTS} points are drawn." if thinned else "",
        "runs": lines,
        "first": with_first[:FIRST],
    }
    return template_environment("intnacl.runs").get_template("runs.html").render(
        lead=printable(f"{heading(runs)} in {place}{f'; {shared}' if shared else ''}."),
        best=[printable(line) for line in best_runs(runs, "clean")],
        columns=[COLUMNS[name] for name in used],
        rows=rows,
        data=data,
    )  # fmt: skip


def _curves(run: RunSummary) -> dict[str, list[float | None]]:
    """Return epochs, minutes spent and every drawn figure of a run's log; None marks missing values."""
    log = records(run.folder.log)
    if len(log) > MOST_POINTS:
        log = [log[round(i * (len(log) - 1) / (MOST_POINTS - 1))] for i in range(MOST_POINTS)]
    names = [name for shown in learning_panels(log).values() for name in shown]
    curves: dict[str, list[float | None]] = {
        name: [_short(record.get(name)) for record in log] for name in ("epoch", *names)
    }
    spent: list[Any] = [sum(record.get(name, 0.0) for name in SPENT) for record in log]
    curves["minutes"] = [_short(seconds / 60) if seconds else None for seconds in spent]
    return curves


def _short(value: float | None) -> float | None:
    """Return a number rounded to five digits, enough for a drawing; None if it is missing or not finite."""
    return float(f"{value:.5g}") if value is not None and math.isfinite(value) else None
