"""`intnacl reproduce`: list, print or run the tables and figures of the paper, or of a grid of one's own."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from intnacl.console import print_table
from intnacl.errors import InputError, check_count
from intnacl.paper import record
from intnacl.paper.attempts import failure, finished, run_folder
from intnacl.paper.grid import SCALES, pick, tables_of
from intnacl.paper.plan import (
    Job,
    Plan,
    check_names,
    estimated_seconds,
    jobs_of,
    make_plan,
    only,
    runs_by_row,
)
from intnacl.paper.progress import Progress, last_line
from intnacl.paper.tables import Column, Row, Table, read_grid
from intnacl.paper.workers import Session, local_devices, new_session, run_local, work
from intnacl.runs.config import to_dict
from intnacl.training.ranks import read_device
from intnacl.training.stop import Stop

TRIALS = 5  # the paper's


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked of the command."""

    tables: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    """Labels of the rows to run; none: all."""
    columns: tuple[str, ...] = ()
    """Likewise of the columns."""
    everything: bool = False
    scale: str = "paper"
    seeds: tuple[int, ...] = (0,)
    grid: Path | None = None
    out: Path
    device: str = "auto"
    workers: int | None = None
    """0: in this process."""
    ray: str | None = None
    max_minutes: float | None = None
    overrides: Mapping[str, Any]

    def universe(self) -> tuple[Table, ...]:
        """All tables there are."""
        return read_grid(self.grid) if self.grid else tables_of(self.scale)

    def chosen(self) -> tuple[Table, ...]:
        """The tables that are asked for; all of a grid of one's own."""
        if self.everything and self.tables:
            raise InputError(f"--table {' '.join(self.tables)} and --all exclude each other: leave one out.")
        universe = self.universe()
        whole = self.everything or (self.grid is not None and not self.tables)
        return universe if whole else pick(universe, self.tables)


def seeds_of(trials: int | None, seeds: Sequence[int]) -> tuple[int, ...]:
    """The seeds that are named, else 0, 1, … for so many trials, by default the paper's."""
    if seeds and trials is not None:
        raise InputError(f"--trials {trials} and --seeds exclude each other: name the seeds alone.")
    if seeds:
        return tuple(dict.fromkeys(seeds))
    trials = TRIALS if trials is None else trials
    check_count("trials", trials, high=1000)
    return tuple(range(trials))


def plan_of(request: Request, tables: Sequence[Table]) -> Plan:
    """The runs of these tables on the request's device."""
    return make_plan(
        tables, request.seeds, universe=request.universe(), overrides=request.overrides,
        device=_device(request),
    )  # fmt: skip


def _device(request: Request) -> torch.device:
    """The kind of device decides the precision of training, and so the name of a run."""
    if request.ray is None:
        return torch.device(local_devices(request.device, request.workers)[0])
    from intnacl.paper.ray_runner import device_of

    return read_device(device_of(request.ray, request.device))


def list_tables(request: Request) -> None:
    """Print every table, or the rows that are named: runs, those finished, the estimated GPU time."""
    plan = plan_of(request, request.universe())
    tables = request.chosen() if request.tables else plan.tables
    check_names(tables, request.rows, request.columns)
    found = [(table, runs_by_row(plan, table, request.rows, request.columns)) for table in tables]
    listed = {run for _, rows in found for _, runs in rows for run in runs}
    costs = estimated_seconds(only(plan, listed))
    by_row = bool(request.tables or request.rows or request.columns)
    lines = []
    for table, rows in found:
        whole = set[str]().union(*(runs for _, runs in rows))
        for title, runs in [(row.name, runs) for row, runs in rows] if by_row else [(table.title, whole)]:
            lines.append((table.name, title, *_counts(runs, request.out, costs)))
    lines.append(("", "all, shared runs once", *_counts(listed, request.out, costs)))
    heads = ["name", "row" if by_row else "title", "runs", "finished", "H200 hours"]
    print_table("", heads, lines, text=len(heads))
    print(
        f"\nFor {len(request.seeds)} seed(s). Hours are estimates from step times measured on one NVIDIA "
        "H200, not measurements of these runs. Tables share runs: each is trained once."
    )
    others = _others(request.out, {job.name for job in plan.jobs})
    if others:
        print(
            f"{request.out / 'runs'} holds {others} more finished runs, of other seeds or settings, or made "
            "where training has another precision (newer GPUs: bf16, else fp32); `intnacl report` shows them."
        )


def _counts(runs: set[str], out: Path, costs: Mapping[str, float]) -> tuple[str, str, str]:
    known = [costs[name] for name in runs if name in costs]
    hours = f"{sum(known) / 3600:.1f}" if len(known) == len(runs) else "?"
    return str(len(runs)), str(sum(finished(out, name) for name in runs)), hours


def _others(out: Path, names: set[str]) -> int:
    """How many finished runs there are besides these."""
    folder = out / "runs"
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return sum(finished(out, name) for name in there - names)


def print_plan(request: Request) -> None:
    """Print each run's configuration, one JSON object a line."""
    for job in _asked(request)[1]:
        print(json.dumps({"run": job.name, "goes_on_from": job.parent, "config": to_dict(job.config)}))


def reproduce(request: Request) -> tuple[str | None, int]:
    """Do the runs; returns why it stopped early (None: it did not) and how many runs failed."""
    plan, jobs = _asked(request)
    record.write(request.out, plan, scale=_scale(request), overrides=request.overrides)
    stop = Stop(request.max_minutes)  # before the session: its workers' time must not be up earlier
    session = new_session(request.out, jobs, request.max_minutes)
    progress = Progress(jobs, request.out, estimated_seconds(jobs), session.name)
    with stop, progress:
        _run(request, session, stop, progress)
    record.write(request.out, plan, scale=_scale(request), overrides=request.overrides)  # what is done now
    return stop.reason, _tell(session, stop)


def _asked(request: Request) -> tuple[Plan, tuple[Job, ...]]:
    """The plan of the tables that are asked for, and the runs of its rows and columns."""
    tables = request.chosen()
    _check_labels(tables, request.overrides)
    plan = plan_of(request, tables)
    return plan, jobs_of(plan, request.rows, request.columns)


def _check_labels(tables: Sequence[Table], overrides: Mapping[str, Any]) -> None:
    """Refuse settings by which rows or columns differ: their figures would stand under others' labels."""
    for table in tables:
        parts: list[Row | Column] = [*table.rows, *table.columns]
        for label, key in ((part.label, key) for part in parts for key in part.settings):
            if key in overrides:
                raise InputError(
                    f"--set {key}: table {table.name!r} sets it itself, in {label!r}, which would then be "
                    "another run than its label says. Leave it, or name other tables."
                )


def _scale(request: Request) -> str:
    """The scale, or the name of the grid's file, which is never taken for one."""
    if request.grid is None:
        return request.scale
    return request.grid.name if request.grid.stem in SCALES else request.grid.stem


def _run(request: Request, session: Session, stop: Stop, progress: Progress) -> None:
    if request.ray is not None:
        from intnacl.paper.ray_runner import device_of, run_on_ray

        device = device_of(request.ray, request.device)
        run_on_ray(session, request.ray, device, stop=stop, progress=progress)
        return
    devices = local_devices(request.device, request.workers)
    if request.workers == 0:
        work(session, devices[0], stop=stop, look=progress.update)
    else:
        run_local(session, devices, stop=stop, progress=progress)


def _tell(session: Session, stop: Stop) -> int:
    """Say how it ended; returns how many runs failed, or were left though nothing told it to stop."""
    names = [job.name for job in session.jobs]
    done = sum(finished(session.results, name) for name in names)
    print(f"{done} of {len(names)} runs are finished in {session.results}.")
    failed = {
        name: last_line(noted["error"])
        for name in names
        if not finished(session.results, name)
        and (noted := failure(run_folder(session.results, name))) is not None
        and session.name in noted["given_up"]
    }
    for error in dict.fromkeys(failed.values()):  # a missing data set fails all runs alike
        first, *more = (name for name in failed if failed[name] == error)
        print(f"failed: {first}{f' and {len(more)} more' if more else ''}: {error}")
    if failed:
        print(f"{len(failed)} failed; their output is in {session.results / 'runs'}/NAME/output.txt, and the "
              "same command tries them again.")  # fmt: skip
    left = len(names) - done - len(failed)
    if left:
        print(f"stopped ({stop.reason or 'its workers died'}); the same command goes on.")
    else:
        print(f"report: intnacl report {session.results}")
    return len(failed) + (left if stop.reason is None else 0)
