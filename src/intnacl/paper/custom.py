"""Grids of one's own: a TOML file with tables, their rows and columns.

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

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from intnacl.errors import InputError, check_choice
from intnacl.losses.integrated import PRESETS
from intnacl.paper.tables import Column, Row, Table
from intnacl.runs.config import flatten, read_toml
from intnacl.runs.values import typed

TYPES: dict[str, Any] = {
    "label": str, "group": str, "metric": str, "dataset": str, "eps": (int, float, str), "x": (int, float),
    "panel": str, "name": str, "title": str, "figure": str, "x_label": str, "settings": dict, "rows": list,
    "columns": list, "preset": str, "optional": bool,
}  # fmt: skip


def read_grid(path: Path) -> tuple[Table, ...]:
    """The tables of a grid file."""
    document = read_toml(path, "grid")
    tables = document.pop("tables", [])
    if document or not isinstance(tables, list) or not tables:
        extra = f" {', '.join(document)} is not known." if document else ""
        raise InputError(f"grid {path} must hold [[tables]].{extra}")
    made = tuple(_table(table, f"grid {path}, table {i}") for i, table in enumerate(tables, 1))
    names = [table.name for table in made]
    if len(set(names)) < len(names):
        raise InputError(f"grid {path}: every table needs a name of its own; there are {', '.join(names)}.")
    return made


def _table(values: Any, where: str) -> Table:
    given = _checked(values, Table, where)
    for part, kind in (("rows", Row), ("columns", Column)):
        items = enumerate(given.get(part, []), 1)
        given[part] = tuple(kind(**_checked(item, kind, f"{where}, {part} {i}")) for i, item in items)
    given.setdefault("title", given.get("name"))
    return Table(**given)


def _checked(values: Any, kind: type, where: str) -> dict[str, Any]:
    """The keywords of a table, row or column; a preset becomes settings of the loss."""
    if not isinstance(values, Mapping):
        raise InputError(f"{where}: {values!r} is no table of TOML.")
    known = [f.name for f in fields(kind)]
    needed = "name" if kind is Table else "label"
    for key, value in values.items():
        check_choice(f"{where}: key", key, dict.fromkeys([*known, "preset"]))
        if not isinstance(value, TYPES[key]) or (isinstance(value, bool) and TYPES[key] is not bool):
            raise InputError(f"{where}: {key}={value!r} is of the wrong kind.")
    if needed not in values:
        raise InputError(f"{where} has no {needed}.")
    given = dict(values)
    preset = given.pop("preset", None) if kind is Table else given.get("preset")
    if preset is not None:
        check_choice(f"{where}: preset", preset, PRESETS)
    if isinstance(given.get("eps"), str):
        given["eps"] = typed(given["eps"], float, f"{where}: eps")
    loss = {f"loss.{name}": value for name, value in PRESETS[preset].items()} if preset else {}
    return given | {"settings": loss | dict(flatten(given.get("settings", {})))}
