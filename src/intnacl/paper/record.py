"""RESULTS/plan.json: which runs stand behind which cells, so that the report knows what is missing.

Later calls with other tables or seeds add to it.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from intnacl.errors import InputError
from intnacl.files import disk_errors, lock, write_file
from intnacl.paper.attempts import finished
from intnacl.paper.plan import Plan
from intnacl.paper.run_names import training_key
from intnacl.runs.config import FREE, RunConfig, from_dict, to_dict
from intnacl.runs.page import PAGE
from intnacl.runs.pretrain import CONFIG
from intnacl.training.settings import TrainConfig

NAME = "plan.json"
VERSION = 1
UNMARKED = FREE - {"recipe"}  # a run's recipe is but its name; as an override it stands for settings
Cells = list[list[dict[str, str]]]  # the run of each seed


def write(results: Path, plan: Plan, *, scale: str, overrides: Mapping[str, Any]) -> None:
    """Add a plan to the record; tables of other settings stay beside it."""
    with disk_errors(results / NAME), _locked(results):
        record = read(results) if (results / NAME).exists() else _empty()
        record["jobs"] |= {
            job.name: {"config": to_dict(job.config), "parent": job.parent} for job in plan.jobs
        }
        for table in plan.tables:
            marks = [scale] if scale != "paper" else []
            marks += [f"{key}={value}" for key, value in sorted(overrides.items()) if key not in UNMARKED]
            key = " ".join([table.name, *marks])
            cells = [[_cell(runs) for runs in row] for row in plan.cells[table.name]]
            former = record["tables"].get(key)
            if former:
                cells = _joined(former["cells"], cells, record["jobs"], results)
            record["tables"][key] = {**asdict(table), "settings": marks, "cells": cells}
        write_file(results / NAME, json.dumps(record, ensure_ascii=False).encode())


@contextmanager
def _locked(results: Path) -> Iterator[None]:
    """Keep other processes from writing the record of this folder, which is made where it is missing."""
    results.mkdir(parents=True, exist_ok=True)
    with lock(results / ".plan.lock"):
        yield


def read(results: Path) -> dict[str, Any]:
    """The record of a results folder."""
    path = results / NAME
    try:
        record = json.loads(path.read_bytes())
    except OSError as error:
        remedy = f"`intnacl reproduce --out {results} …` makes one"
        if (results / CONFIG).exists():
            remedy = f"it is one run, whose own page is {results / PAGE}, once `intnacl run` is through"
        raise InputError(f"{results} is no results folder: it has no {NAME}; {remedy}.") from error
    except ValueError as error:  # no JSON, or no text at all
        raise InputError(f"{path} is damaged: {error}.") from error
    version = record.get("version") if isinstance(record, dict) else None
    if version != VERSION:
        raise InputError(
            f"{path} has version {version!r}, this program writes {VERSION}: take another results folder."
        )
    return dict(record)


def _empty() -> dict[str, Any]:
    return {"version": VERSION, "tables": {}, "jobs": {}}


def _cell(runs: Mapping[int, str]) -> dict[str, str]:
    return {str(seed): name for seed, name in runs.items()}


def _joined(former: Cells, new: Cells, jobs: Mapping[str, Any], results: Path) -> Cells:
    """New cells with the seeds that there were for the same training under any label.

    Where a seed has another run now, the new one; but a figure stays until that is done, if the two differ
    in their machines, or in what else is measured. Runs that train otherwise leave the table: the grid was
    edited.
    """
    config = cache(lambda name: _anywhere(jobs[name]["config"]))
    key = cache(lambda name: training_key(config(name)))
    done = cache(lambda name: finished(results, name))
    known: dict[str, dict[str, str]] = {}
    for cell in (cell for row in former for cell in row):
        for seed, name in cell.items():
            known.setdefault(key(name), {})[seed] = name

    def newer(old: str, new: str) -> str:
        return old if done(old) and not done(new) and _alike(config(old), config(new)) else new

    def join(cell: dict[str, str]) -> dict[str, str]:
        kept = {seed: old for name in cell.values() for seed, old in known.get(key(name), {}).items()}
        return kept | {seed: newer(kept.get(seed, name), name) for seed, name in cell.items()}

    return [[join(cell) for cell in row] for row in new]


def _alike(a: RunConfig, b: RunConfig) -> bool:
    """Whether figures that both have are the same ones: at the same first radius, on as many images."""
    one, two = a.evaluation, b.evaluation
    return (one.eps[:1], one.images) == (two.eps[:1], two.images)


def _anywhere(config: Mapping[str, Any]) -> RunConfig:
    """A run without the precision that its machine gave it: runs of one cell may differ in that."""
    run = from_dict(config)
    return replace(run, train=replace(run.train, precision=TrainConfig.precision))
