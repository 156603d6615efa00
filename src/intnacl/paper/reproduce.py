"""`intnacl reproduce`: list, print or run the tables and figures of the paper, or of the user's own grid."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from intnacl.console import show
from intnacl.errors import InputError, check_count, printable
from intnacl.paper import record
from intnacl.paper.attempts import failure, finished, run_folder
from intnacl.paper.grid import PAPER, SCALES, pick, tables_of
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
from intnacl.paper.session import Executor, Session, new_session, run_all
from intnacl.paper.tables import Column, Row, Table, read_grid
from intnacl.paper.workers import InProcess, Processes, RayTasks, connect, local_devices, ray_device
from intnacl.runs.config import to_dict
from intnacl.training.ranks import read_device
from intnacl.training.stop import Stop

TRIALS = 5  # the paper's


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The runs that the command selects, and the devices on which they are executed."""

    tables: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    """Labels of the rows to run; none: all."""
    columns: tuple[str, ...] = ()
    """Labels of the columns to run; none: all."""
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

    @property
    def scale_name(self) -> str:
        """The scale; for a user's grid at full scale the name of its file, made distinct from the scales."""
        if self.grid is None or self.scale == "tiny":
            return self.scale
        return self.grid.name if self.grid.stem in SCALES else self.grid.stem

    def universe(self) -> tuple[Table, ...]:
        """Return all tables, selected or not."""
        return tables_of(self.scale, read_grid(self.grid) if self.grid else PAPER)

    def chosen(self) -> tuple[Table, ...]:
        """Return the selected tables; by default all tables of the user's own grid."""
        if self.everything and self.tables:
            raise InputError(f"--table {' '.join(self.tables)} and --all exclude each other: leave one out.")
        universe = self.universe()
        whole = self.everything or (self.grid is not None and not self.tables)
        return universe if whole else pick(universe, self.tables)

    def plan(self, tables: Sequence[Table]) -> Plan:
        """Return the runs of these tables for the kind of device on which they are executed.

        The device decides the precision of training, and thereby the name of a run.
        """
        if self.ray is None:
            device = torch.device(local_devices(self.device, self.workers)[0])
        else:
            device = read_device(ray_device(connect(self.ray), self.device))
        universe = self.universe()
        return make_plan(tables, self.seeds, universe=universe, overrides=self.overrides, device=device)

    def plan_chosen(self) -> tuple[Plan, tuple[Job, ...]]:
        """Return the plan of the selected tables, and the runs of their selected rows and columns.

        Raise if an override changes a setting by which rows or columns differ: their labels would be wrong.
        """
        tables = self.chosen()
        for table in tables:
            parts: list[Row | Column] = [*table.rows, *table.columns]
            for label, key in ((part.label, key) for part in parts for key in part.settings):
                if key in self.overrides:
                    raise InputError(
                        f"--set {key}: table {table.name!r} sets it itself, in {label!r}, whose label would "
                        "then be wrong. Leave it out, or choose other tables."
                    )
        plan = self.plan(tables)
        return plan, jobs_of(plan, self.rows, self.columns)


def seeds_of(trials: int | None, seeds: Sequence[int]) -> tuple[int, ...]:
    """Return the given seeds, else 0, 1, … for the number of trials, by default the paper's."""
    if seeds and trials is not None:
        raise InputError(f"--trials {trials} and --seeds exclude each other: give only the seeds.")
    if seeds:
        return tuple(dict.fromkeys(seeds))
    trials = TRIALS if trials is None else trials
    check_count("trials", trials, high=1000)
    return tuple(range(trials))


def list_tables(selection: Selection) -> None:
    """Print every table, or the selected rows, with runs, finished runs and the estimated GPU time."""
    from rich.console import Console
    from rich.table import Table as Grid

    out, plan = selection.out, selection.plan(selection.universe())
    tables = selection.chosen() if selection.tables else plan.tables
    rows, columns = selection.rows, selection.columns
    check_names(tables, rows, columns)
    found = [(table, runs_by_row(plan, table, rows, columns)) for table in tables]
    listed = {run for _, by_row in found for _, runs in by_row for run in runs}
    seconds = estimated_seconds(only(plan, listed))
    lines: list[tuple[str, str, set[str]]] = []
    if selection.tables or rows or columns:
        heading = "row"
        lines += [(table.name, row.name, runs) for table, by_row in found for row, runs in by_row]
    else:
        heading = "title"
        lines += [(t.name, t.title, set[str]().union(*(runs for _, runs in by_row))) for t, by_row in found]
    short = sum(seconds.values()) < 10 * 3600  # as most users' grids are
    grid = Grid("name", heading, "runs", "finished", f"H200 {'minutes' if short else 'hours'}", box=None)
    for name, title, runs in [*lines, ("", "all, counting shared runs once", listed)]:
        known = [seconds[run] for run in runs if run in seconds]
        time = sum(known) / (60 if short else 3600)
        grid.add_row(
            printable(name),
            printable(title),
            str(len(runs)),
            str(sum(finished(out, run) for run in runs)),
            f"{time:.1f}" if len(known) == len(runs) else "?",
        )
    Console(markup=False).print(grid)  # titles of a user's grid may hold brackets
    print(
        f"\nFor {len(selection.seeds)} seed(s). Times are estimates from step times measured on one NVIDIA "
        "H200, not measurements of these runs. Tables share runs: each is trained once."
    )
    there = {path.name for path in (out / "runs").iterdir()} if (out / "runs").is_dir() else set()
    others = sum(finished(out, name) for name in there - {job.name for job in plan.jobs})
    if others:
        show(
            f"{out / 'runs'} holds {others} more finished runs, with other seeds or settings, or from "
            "devices with another training precision (newer GPUs: bf16, else fp32); `intnacl report` shows "
            "them."
        )


def print_plan(selection: Selection) -> None:
    """Print each run's configuration, one JSON object per line."""
    for job in selection.plan_chosen()[1]:
        print(json.dumps({"run": job.name, "goes_on_from": job.parent, "config": to_dict(job.config)}))


def reproduce(selection: Selection) -> tuple[str | None, int]:
    """Execute the runs; return the reason of an early stop, or None, and the number of failed runs."""
    out, limit = selection.out, selection.max_minutes
    plan, jobs = selection.plan_chosen()
    scale, overrides = selection.scale_name, selection.overrides
    record.write(out, plan, scale=scale, overrides=overrides)
    stop = Stop(limit)  # created before the session, whose workers must not stop earlier
    session = new_session(out, jobs, limit)
    progress = Progress(jobs, out, estimated_seconds(jobs), session.name)
    with stop, progress:
        executor: Executor
        if selection.ray is not None:
            ray = connect(selection.ray)
            executor = RayTasks(session, ray, ray_device(ray, selection.device))
        else:
            devices = local_devices(selection.device, selection.workers)
            in_process = selection.workers == 0
            executor = InProcess(session, devices[0], stop) if in_process else Processes(session, devices)
        run_all(session, executor, stop=stop, progress=progress)
    record.write(out, plan, scale=scale, overrides=overrides)  # again, because finished runs count
    return stop.reason, print_summary(session, stop)


def print_summary(session: Session, stop: Stop) -> int:
    """Print the outcome of a session; return the number of runs that failed, or were left without a stop."""
    names = [job.name for job in session.jobs]
    done = {name for name in names if finished(session.results, name)}
    show(f"{len(done)} of {len(names)} runs are finished in {session.results}.")
    failed: dict[str, str] = {}
    for name in names:
        noted = failure(run_folder(session.results, name))
        if name not in done and noted is not None and session.name in noted["given_up"]:
            failed[name] = last_line(noted["error"])
    for error in dict.fromkeys(failed.values()):  # once per error: a missing data set fails all runs
        first, *more = (name for name in failed if failed[name] == error)
        show(f"failed: {first}{f' and {len(more)} more' if more else ''}: {error}")
    if failed:
        show(
            f"{len(failed)} failed; their output is in {session.results / 'runs'}/NAME/output.txt, and the "
            "same command retries them."
        )
    left = len(names) - len(done) - len(failed)
    if left:
        print(f"stopped ({stop.reason or 'its workers died'}); the same command resumes.")
    else:
        show(f"report: intnacl report {session.results}")
    return len(failed) + (left if stop.reason is None else 0)
