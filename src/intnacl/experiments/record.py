"""RESULTS/plan.json: which runs stand behind which cells, so that the report knows what is missing.

Later calls with other tables or seeds add to it.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from intnacl.config import FREE, to_dict
from intnacl.data.aside import locked, new_file
from intnacl.errors import InputError
from intnacl.experiments.plan import Plan

NAME = "plan.json"
VERSION = 1


def write(results: Path, plan: Plan, *, scale: str, overrides: Mapping[str, Any]) -> None:
    """Add a plan to the record; tables of other settings stay beside it."""
    results.mkdir(parents=True, exist_ok=True)
    with locked(results / ".plan.lock"):
        record = read(results) if (results / NAME).exists() else _empty()
        for table in plan.tables:
            marks = [scale] if scale != "paper" else []
            marks += [f"{key}={value}" for key, value in overrides.items() if key not in FREE]
            key = " ".join([table.name, *marks])
            cells = [[_cell(runs) for runs in row] for row in plan.cells[table.name]]
            former = record["tables"].get(key)
            if former and _shape(former["cells"]) == _shape(cells):
                cells = _joined(former["cells"], cells)
            record["tables"][key] = {**asdict(table), "settings": marks, "cells": cells}
        record["jobs"] |= {
            job.name: {"config": to_dict(job.config), "parent": job.parent} for job in plan.jobs
        }
        with new_file(results / NAME) as handle:
            handle.write(json.dumps(record, ensure_ascii=False).encode())


def read(results: Path) -> dict[str, Any]:
    """The record of a results folder."""
    path = results / NAME
    try:
        record: dict[str, Any] = json.loads(path.read_text())
    except OSError as error:
        remedy = f"`intnacl reproduce --out {results} …` makes one"
        raise InputError(f"{results} is no results folder: it has no {NAME}; {remedy}.") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is damaged: {error}.") from error
    if record.get("version") != VERSION:
        raise InputError(f"{path} has version {record.get('version')!r}, this program writes {VERSION}.")
    return record


def _empty() -> dict[str, Any]:
    return {"version": VERSION, "tables": {}, "jobs": {}}


def _cell(runs: Mapping[int, str]) -> dict[str, str]:
    return {str(seed): name for seed, name in runs.items()}


def _shape(cells: list[list[Any]]) -> list[int]:
    return [len(row) for row in cells]


def _joined(
    former: list[list[dict[str, str]]], new: list[list[dict[str, str]]]
) -> list[list[dict[str, str]]]:
    """Seeds of both; where the same seed has another run now, the new one."""
    return [[a | b for a, b in zip(x, y, strict=True)] for x, y in zip(former, new, strict=True)]
