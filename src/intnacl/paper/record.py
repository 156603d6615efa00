"""RESULTS/plan.json: which runs belong to which cells, so that the report knows what is missing.

Later calls with other tables or seeds add to it.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, TypedDict, cast

from intnacl.errors import InputError
from intnacl.files import disk_errors, fits, lock, parse_json, read_file, write_text
from intnacl.paper.attempts import finished
from intnacl.paper.plan import Plan
from intnacl.paper.run_names import training_key
from intnacl.paper.tables import Column, Row, Table
from intnacl.runs.config import FREE, RunConfig, from_dict, to_dict
from intnacl.runs.folder import RunFolder
from intnacl.training.settings import TrainConfig

NAME = "plan.json"
VERSION = 1
UNMARKED = FREE - {"recipe"}  # a run's recipe is only its name; as an override it stands for settings
Cells = list[list[dict[str, str]]]
"""In each row and column, the run of each seed."""


class TableRecord(TypedDict):
    """A table as it is stored: rows and columns as keywords of `Row` and `Column`."""

    name: str
    title: str
    rows: list[dict[str, Any]]
    columns: list[dict[str, Any]]
    settings: list[str]
    """The scale and overrides that make it another table than the paper's of this name."""
    figure: str | None
    x_label: str
    cells: Cells


class JobRecord(TypedDict):
    """A run as it is stored."""

    config: Mapping[str, Any]
    parent: str | None


class Record(TypedDict):
    """The content of plan.json."""

    version: int
    tables: dict[str, TableRecord]
    jobs: dict[str, JobRecord]


def write(results: Path, plan: Plan, *, scale: str, overrides: Mapping[str, Any]) -> None:
    """Add a plan to the record; tables of other settings stay beside it."""
    path = results / NAME
    with disk_errors(path):
        results.mkdir(parents=True, exist_ok=True)
        with lock(results / ".plan.lock"):
            record = read(results) if path.exists() else Record(version=VERSION, tables={}, jobs={})
            for job in plan.jobs:
                record["jobs"][job.name] = {"config": to_dict(job.config), "parent": job.parent}
            for table in plan.tables:
                marks = [scale] if scale != "paper" else []
                marks += [f"{key}={value}" for key, value in sorted(overrides.items()) if key not in UNMARKED]
                key = " ".join([table.name, *marks])
                cells = [
                    [{str(seed): name for seed, name in runs.items()} for runs in row]
                    for row in plan.cells[table.name]
                ]
                if key in record["tables"]:
                    cells = _with_former_seeds(cells, record["tables"][key]["cells"], record, results)
                entry = {**asdict(table), "settings": marks, "cells": cells}
                record["tables"][key] = cast(TableRecord, entry)
            write_text(path, json.dumps(record, ensure_ascii=False))


def read(results: Path) -> Record:
    """Return the record of a results folder."""
    path = results / NAME
    try:
        record = parse_json(read_file(path))
    except OSError as error:
        remedy = f"`intnacl reproduce --out {results} …` makes one"
        if RunFolder(results).config.exists():
            remedy = (
                f"it is one run, whose own page is {RunFolder(results).page}, once `intnacl run` is through"
            )
        raise InputError(f"{results} is no results folder: it has no {NAME}; {remedy}.") from error
    except ValueError as error:  # no JSON, or no text at all
        raise InputError(f"{path} is damaged: {error}.") from error
    version = record.get("version") if isinstance(record, dict) else None
    if version != VERSION:
        raise InputError(
            f"{path} has version {version!r}, this program writes {VERSION}: take another results folder."
        )
    try:
        _check(record)
    except (ValueError, TypeError) as error:
        remedy = "move it away and repeat the commands of `intnacl reproduce`, which skip finished runs"
        raise InputError(f"{path} is damaged: {error} To make it again, {remedy}.") from error
    return cast(Record, record)


def _check(record: Any) -> None:
    """Raise unless every part of a record is as `write` leaves it."""
    if not fits(record, Record) or not all(
        fits(table["rows"], list[Row]) and fits(table["columns"], list[Column])
        for table in record["tables"].values()
    ):
        raise ValueError("a part of it is missing or of the wrong kind.")
    for job in record["jobs"].values():
        from_dict(job["config"])
    for table in record["tables"].values():
        rows = tuple(Row(**row) for row in table["rows"])
        columns = tuple(Column(**column) for column in table["columns"])
        facts = {key: table[key] for key in ("name", "title", "figure", "x_label")}
        Table(rows=rows, columns=columns, **facts)
        if [len(row) for row in table["cells"]] != [len(columns)] * len(rows):
            raise ValueError(f"the cells of {table['name']!r} are not its rows times its columns.")
        cells = [cell for row in table["cells"] for cell in row]
        if not all(cells) or not all(seed.lstrip("-").isdecimal() for cell in cells for seed in cell):
            raise ValueError(f"a cell of {table['name']!r} has no seeds.")
        if unknown := {name for cell in cells for name in cell.values()} - record["jobs"].keys():
            raise ValueError(f"it has no run {min(unknown)!r}.")


def _with_former_seeds(new: Cells, former: Cells, record: Record, results: Path) -> Cells:
    """Return the new cells with the seeds that the same training had before, under whatever label.

    Where a seed has another run now, the new one counts. But while only the old one is finished, its figure
    stays, if the two differ in their machines or in what else they measure, and not in the first radius or
    the number of images. Runs that train otherwise leave the table: the grid was edited.
    """

    @cache
    def config(name: str) -> RunConfig:
        """A run without the precision that its machine gave it: runs of one cell may differ in that."""
        run = from_dict(record["jobs"][name]["config"])
        return replace(run, train=replace(run.train, precision=TrainConfig.precision))

    @cache
    def protocol(name: str) -> tuple[tuple[float, ...], int | None]:
        return config(name).evaluation.eps[:1], config(name).evaluation.images

    key = cache(lambda name: training_key(config(name)))
    done = cache(lambda name: finished(results, name))
    known: dict[str, dict[str, str]] = {}
    for cell in (cell for row in former for cell in row):
        for seed, name in cell.items():
            known.setdefault(key(name), {})[seed] = name

    def join(cell: dict[str, str]) -> dict[str, str]:
        joined = {seed: old for name in cell.values() for seed, old in known.get(key(name), {}).items()}
        for seed, name in cell.items():
            old = joined.get(seed, name)
            joined[seed] = old if done(old) and not done(name) and protocol(old) == protocol(name) else name
        return joined

    return [[join(cell) for cell in row] for row in new]
