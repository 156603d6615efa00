"""Tables and figures: rows and columns of settings, and the figure of a run that each cell shows.

A cell's run has the settings of the table, its row and its column, in which later ones override earlier ones;
its value is the column's metric. A cell has one run per seed. A user's own grid is a TOML file:

[[tables]]
name = "temperature"
title = "The temperature on digits"
settings = {dataset = "digits", "train.epochs" = 20}
[[tables.rows]]
label = "t = 0.2"
settings = {"loss.temperature" = 0.2}
[[tables.columns]]
label = "accuracy"
metric = "clean"
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from intnacl.attacks.named import eps_text
from intnacl.data.datasets import absolute_name
from intnacl.errors import InputError, check_choice
from intnacl.losses.config import PRESETS
from intnacl.runs.config import flatten, typed
from intnacl.runs.resolve import PRESET_SETTINGS, read_toml

Settings = Mapping[str, Any]
METRICS = ("clean", "knn", "fgsm", "pgd", "pgd_tuned", "autoattack", "minutes")
NOT_ATTACKED = ("clean", "knn", "minutes")
FIGURES = ("scatter", "curves", "runtime")
KEYS: Mapping[str, Any] = {  # of a grid's file, and the types of their values
    "label": str, "group": str, "metric": str, "dataset": str, "eps": (int, float, str), "x": (int, float),
    "panel": str, "name": str, "title": str, "figure": str, "x_label": str, "settings": dict, "rows": list,
    "columns": list, "preset": str, "optional": bool,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of a table, or a curve or point of a figure."""

    label: str
    group: str = ""
    """Rows of one group stand together under its name."""
    settings: Settings = field(default_factory=dict)
    preset: str | None = None
    """The preset on which `settings` build; it replaces the table's settings that presets decide."""

    @property
    def name(self) -> str:
        """Its label, after that of its group if it has one."""
        return f"{self.group}, {self.label}" if self.group else self.label

    @property
    def names(self) -> set[str]:
        """Its label alone, or with that of its group."""
        return {self.label, self.name}


@dataclass(frozen=True, kw_only=True)
class Column:
    """A figure of the runs: accuracy in percent, or minutes of training."""

    label: str
    metric: str = "clean"
    dataset: str | None = None
    """The measured data set; None: the data set of training."""
    eps: float | None = None
    """The attack's radius in pixels; None: the run's first."""
    settings: Settings = field(default_factory=dict)
    x: float | None = None
    """The position on the x-axis, in curves."""
    panel: str = ""
    """The panel of the figure."""
    optional: bool = False
    """True if runs do not measure it; the column is shown once it is measured, e.g. by `intnacl attack`."""
    preset: str | None = None
    """A preset like that of a row; it overrides table and row."""

    def __post_init__(self) -> None:
        check_choice(f"metric of column {self.label!r}", self.metric, METRICS)
        if self.eps is not None and self.metric in NOT_ATTACKED:
            raise InputError(
                f"column {self.label!r}: eps={eps_text(self.eps)} needs an attack, but the metric is "
                f"{self.metric}: name an attack as metric."
            )
        if self.x is not None and not math.isfinite(self.x):
            raise InputError(
                f"column {self.label!r}: x={self.x} is not a position on an axis: give a finite number."
            )


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows × columns of cells, also drawn if `figure` is given."""

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
        """Yield (row, column, settings) of every cell."""
        for i, row in enumerate(self.rows):
            for j, column in enumerate(self.columns):
                settings = self.settings
                for over in (row, column):
                    if over.preset is not None:  # a preset replaces the whole loss below it
                        settings = {
                            key: value for key, value in settings.items() if key not in PRESET_SETTINGS
                        }
                    settings = {**settings, **over.settings}
                yield i, j, dict(settings)


def read_grid(path: Path) -> tuple[Table, ...]:
    """Return the tables of a grid's file."""
    document = read_toml(path, "grid")
    tables = document.pop("tables", [])
    if document or not isinstance(tables, list) or not tables:
        extra = f" Unknown: {', '.join(document)}." if document else ""
        raise InputError(f"grid {path} must hold [[tables]].{extra}")
    made = []
    for i, table in enumerate(tables, 1):
        where = f"grid {path}, table {i}"
        given = _keywords(table, Table, where)
        for part, kind in (("rows", Row), ("columns", Column)):
            items = enumerate(given.get(part, []), 1)
            given[part] = tuple(kind(**_keywords(item, kind, f"{where}, {part} {j}")) for j, item in items)
        made.append(Table(**{"title": given["name"], **given}))
    names = [table.name for table in made]
    if len(set(names)) < len(names):
        raise InputError(f"grid {path}: table names must differ; there are {', '.join(names)}.")
    return tuple(made)


def _keywords(values: Any, kind: type, where: str) -> dict[str, Any]:
    """Check the keywords of a table, row or column; a preset becomes settings of the loss."""
    if not isinstance(values, Mapping):
        raise InputError(f"{where}: {values!r} is not a TOML table.")
    for key, value in values.items():
        check_choice(f"{where}: key", key, dict.fromkeys([*(f.name for f in fields(kind)), "preset"]))
        if not isinstance(value, KEYS[key]) or (isinstance(value, bool) and KEYS[key] is not bool):
            raise InputError(f"{where}: {key}={value!r} has the wrong type.")
    needed = "name" if kind is Table else "label"
    if needed not in values:
        raise InputError(f"{where} has no {needed}.")
    given = dict(values)
    preset = given.pop("preset", None) if kind is Table else given.get("preset")
    if preset is not None:
        check_choice(f"{where}: preset", preset, PRESETS)
    if "dataset" in given:
        given["dataset"] = absolute_name(given["dataset"])
    if isinstance(given.get("eps"), str):
        given["eps"] = typed(given["eps"], float, f"{where}: eps")
    loss = {f"loss.{name}": value for name, value in PRESETS[preset].items()} if preset else {}
    return given | {"settings": loss | dict(flatten(given.get("settings", {})))}
