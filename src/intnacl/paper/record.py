"""RESULTS/plan.json: the runs behind every cell, by which the report tells which are missing.

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
UNMARKED = FREE - {"recipe"}  # a run's recipe is only a name, but as an override it changes settings
Cells = list[list[dict[str, str]]]
"""For each row and column, the run of each seed."""


class TableRecord(TypedDict):
    """A table as it is stored: rows and columns as keywords of `Row` and `Column`."""

    name: str
    title: str
    rows: list[dict[str, Any]]
    columns: list[dict[str, Any]]
    settings: list[str]
    """The scale and overrides that distinguish it from the paper's table of this name."""
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
    """Add a plan to the record; tables of other settings stay in the record."""
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
            remedy = f"it is a single run, whose page is {RunFolder(results).page} when `intnacl run` is done"
        raise InputError(f"{results} is not a results folder: it has no {NAME}; {remedy}.") from error
    except ValueError as error:  # not JSON, or not text
        raise InputError(f"{path} is damaged: {error}.") from error
    version = record.get("version") if isinstance(record, dict) else None
    if version != VERSION:
        raise InputError(
            f"{path} has version {version!r}, this program writes {VERSION}: choose another results folder."
        )
    try:
        _check(record)
    except (ValueError, TypeError) as error:
        remedy = "move it away and repeat the commands of `intnacl reproduce`, which skip finished runs"
        raise InputError(f"{path} is damaged: {error} To restore it, {remedy}.") from error
    return cast(Record, record)


def _check(record: Any) -> None:
    """Raise unless a record has the form that `write` gives it."""
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
            raise ValueError(f"the cells of {table['name']!r} do not match its rows and columns.")
        cells = [cell for row in table["cells"] for cell in row]
        if not all(cells) or not all(seed.lstrip("-").isdecimal() for cell in cells for seed in cell):
            raise ValueError(f"a cell of {table['name']!r} has no seeds.")
        if unknown := {name for cell in cells for name in cell.values()} - record["jobs"].keys():
            raise ValueError(f"it lacks the run {min(unknown)!r}.")


def _with_former_seeds(new: Cells, former: Cells, record: Record, results: Path) -> Cells:
    """Return the new cells, extended by the seeds that the same training had before, under any label.

    A seed's new run replaces its old one. But while only the old run is finished, it stays, provided that
    both have the same first radius and number of images, and differ only in their machines or in what else
    they measure. Runs of other trainings leave the table, because the grid was edited.
    """

    @cache
    def config(name: str) -> RunConfig:
        """Return a run's configuration without its precision, in which the runs of one cell may differ."""
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
