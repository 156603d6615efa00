"""Many runs as one page, whole in itself: their learning curves over each other, and their figures."""

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

FIRST = 12  # runs that are drawn when the page opens
AXES = ("epoch", "minutes")
MOST_POINTS = 300  # of a curve
DASHES = ("", "7 4", "2 4", "9 3 2 3")  # with each of the colours, before any pair is used again
NOTES = {
    "loss": "Losses of different kinds have different scales: compare them by accuracies.",
    "knn_train": "Training images, each judged by its nearest others: this does not measure generalisation.",
}


def write_listing(runs: Sequence[RunSummary], place: Path, out: Path) -> None:
    """Write the page of some runs in a folder, in their order."""
    write_text(out, render_listing(runs, place, out))


def render_listing(runs: Sequence[RunSummary], place: Path, out: Path) -> str:
    """Return the page; links lead from `out` to the pages of the runs that have one."""
    curves = [_curves(run) for run in runs]
    names = dict.fromkeys(name for one in curves for name in one if name not in AXES)
    # First the figure that most runs have, accuracies before losses: those have one scale.
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
    """Return the epochs, the minutes spent, and every drawn figure of a run's log, None where it has none."""
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
    """Return a number with five digits, which a drawing cannot tell from the whole; None for no number."""
    return float(f"{value:.5g}") if value is not None and math.isfinite(value) else None
