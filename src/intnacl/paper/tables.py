"""What a table or figure is: rows and columns of settings, and the figure of a run that each cell shows.

A cell's run has the settings of the table, its row and its column, later ones over earlier ones; its value is
the column's metric. Several seeds make several runs of a cell.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from intnacl.errors import InputError, check_choice
from intnacl.runs.config import DECIDED

Settings = Mapping[str, Any]
METRICS = ("clean", "fgsm", "pgd", "pgd_tuned", "autoattack", "minutes")
FIGURES = ("scatter", "curves", "runtime")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of a table, or a curve or point of a figure."""

    label: str
    group: str = ""
    """Rows of one group stand together under its name."""
    settings: Settings = field(default_factory=dict)
    preset: str | None = None
    """The loss that `settings` begin with: what presets decide is not taken from the table."""

    @property
    def name(self) -> str:
        """Its label, after that of its group if it has one."""
        return f"{self.group}, {self.label}" if self.group else self.label

    @property
    def names(self) -> set[str]:
        """What it may be called."""
        return {self.label, self.name}


@dataclass(frozen=True, kw_only=True)
class Column:
    """A figure of the runs: accuracy in percent, or minutes of training."""

    label: str
    metric: str = "clean"
    dataset: str | None = None
    """Where it is measured; None: on the data set of training."""
    eps: float | None = None
    """The attack's radius in pixels; None: the run's first."""
    settings: Settings = field(default_factory=dict)
    x: float | None = None
    """The place on the x-axis, in curves."""
    panel: str = ""
    """The panel of the figure."""
    optional: bool = False
    """Shown where it has been measured; no run is asked for it."""
    preset: str | None = None
    """As a row's, over table and row."""

    def __post_init__(self) -> None:
        check_choice(f"metric of column {self.label!r}", self.metric, METRICS)
        if self.eps is not None and self.metric in ("clean", "minutes"):
            raise InputError(
                f"column {self.label!r}: eps={self.eps:g} is an attack's, but its metric is {self.metric}: "
                "name the attack there."
            )
        if self.x is not None and not math.isfinite(self.x):
            raise InputError(
                f"column {self.label!r}: x={self.x} is no place on an axis: give a finite number."
            )


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows × columns of cells, drawn as a figure where `figure` says how."""

    name: str
    title: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    settings: Settings = field(default_factory=dict)
    figure: str | None = None
    """scatter: the second column of a panel against its first; curves: over the columns' x; runtime."""
    x_label: str = ""

    def __post_init__(self) -> None:
        if not self.rows or not self.columns:
            raise InputError(f"table {self.name!r} needs at least one row and one column.")
        if not self.name.strip():
            raise InputError("a table needs a name that is not empty.")
        if self.figure is not None:
            check_choice(f"figure of table {self.name!r}", self.figure, FIGURES)
        if self.figure in ("curves", "runtime") and any(column.x is None for column in self.columns):
            raise InputError(f"table {self.name!r}: every column of a {self.figure} figure needs an x.")
        panels = [column.panel for column in self.columns]
        lone = next((panel for panel in panels if panels.count(panel) < 2), None)
        if self.figure == "scatter" and lone is not None:
            where = f"panel {lone!r}" if lone else "it"
            raise InputError(
                f"table {self.name!r}: a scatter figure draws a panel's second column against its first, but "
                f"{where} has only one."
            )

    def cells(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """(row, column, settings) of every cell."""
        for i, row in enumerate(self.rows):
            for j, column in enumerate(self.columns):
                yield i, j, _over(_over(self.settings, row), column)


def _over(below: Settings, part: Row | Column) -> dict[str, Any]:
    """Settings with those of a row or column over them; a preset is a whole loss, so no part of one stays."""
    kept = {key: value for key, value in below.items() if part.preset is None or key not in DECIDED}
    return {**kept, **part.settings}
