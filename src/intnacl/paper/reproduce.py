"""`intnacl reproduce`: list, print or run the tables and figures of the paper, or of a grid of one's own."""

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
    """The runs that are asked of the command, and where they are done."""

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

    @property
    def scale_name(self) -> str:
        """The scale, or the name of a grid's file at full size, which is never taken for one."""
        if self.grid is None or self.scale == "tiny":
            return self.scale
        return self.grid.name if self.grid.stem in SCALES else self.grid.stem

    def universe(self) -> tuple[Table, ...]:
        """Return all tables there are."""
        return tables_of(self.scale, read_grid(self.grid) if self.grid else PAPER)

    def chosen(self) -> tuple[Table, ...]:
        """Return the tables that are asked for; all of a grid of one's own."""
        if self.everything and self.tables:
            raise InputError(f"--table {' '.join(self.tables)} and --all exclude each other: leave one out.")
        universe = self.universe()
        whole = self.everything or (self.grid is not None and not self.tables)
        return universe if whole else pick(universe, self.tables)

    def plan(self, tables: Sequence[Table]) -> Plan:
        """Return the runs of these tables on the kind of device that they are done on.

        It decides the precision of training, and so the name of a run.
        """
        if self.ray is None:
            device = torch.device(local_devices(self.device, self.workers)[0])
        else:
            device = read_device(ray_device(connect(self.ray), self.device))
        universe = self.universe()
        return make_plan(tables, self.seeds, universe=universe, overrides=self.overrides, device=device)

    def plan_chosen(self) -> tuple[Plan, tuple[Job, ...]]:
        """Return the plan of the tables that are asked for, and the runs of their chosen rows and columns.

        Settings by which rows or columns differ are refused: figures would stand under labels of others.
        """
        tables = self.chosen()
        for table in tables:
            parts: list[Row | Column] = [*table.rows, *table.columns]
            for label, key in ((part.label, key) for part in parts for key in part.settings):
                if key in self.overrides:
                    raise InputError(
                        f"--set {key}: table {table.name!r} sets it itself, in {label!r}, which would then "
                        "be another run than its label says. Leave it, or name other tables."
                    )
        plan = self.plan(tables)
        return plan, jobs_of(plan, self.rows, self.columns)


def seeds_of(trials: int | None, seeds: Sequence[int]) -> tuple[int, ...]:
    """Return the seeds that are named, else 0, 1, … for so many trials, by default the paper's."""
    if seeds and trials is not None:
        raise InputError(f"--trials {trials} and --seeds exclude each other: name the seeds alone.")
    if seeds:
        return tuple(dict.fromkeys(seeds))
    trials = TRIALS if trials is None else trials
    check_count("trials", trials, high=1000)
    return tuple(range(trials))


def list_tables(selection: Selection) -> None:
    """Print every table, or the rows that are named: runs, those finished, the estimated GPU time."""
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
    short = sum(seconds.values()) < 10 * 3600  # as grids of one's own mostly are
    grid = Grid("name", heading, "runs", "finished", f"H200 {'minutes' if short else 'hours'}", box=None)
    for name, title, runs in [*lines, ("", "all, shared runs once", listed)]:
        known = [seconds[run] for run in runs if run in seconds]
        time = sum(known) / (60 if short else 3600)
        grid.add_row(
            printable(name),
            printable(title),
            str(len(runs)),
            str(sum(finished(out, run) for run in runs)),
            f"{time:.1f}" if len(known) == len(runs) else "?",
        )
    Console(markup=False).print(grid)  # titles of a grid of one's own may hold brackets
    print(
        f"\nFor {len(selection.seeds)} seed(s). Times are estimates from step times measured on one NVIDIA "
        "H200, not measurements of these runs. Tables share runs: each is trained once."
    )
    there = {path.name for path in (out / "runs").iterdir()} if (out / "runs").is_dir() else set()
    others = sum(finished(out, name) for name in there - {job.name for job in plan.jobs})
    if others:
        show(
            f"{out / 'runs'} holds {others} more finished runs, of other seeds or settings, or made "
            "where training has another precision (newer GPUs: bf16, else fp32); `intnacl report` shows them."
        )


def print_plan(selection: Selection) -> None:
    """Print each run's configuration, one JSON object a line."""
    for job in selection.plan_chosen()[1]:
        print(json.dumps({"run": job.name, "goes_on_from": job.parent, "config": to_dict(job.config)}))


def reproduce(selection: Selection) -> tuple[str | None, int]:
    """Do the runs; return why it stopped early (None: it did not) and how many runs failed."""
    out, limit = selection.out, selection.max_minutes
    plan, jobs = selection.plan_chosen()
    scale, overrides = selection.scale_name, selection.overrides
    record.write(out, plan, scale=scale, overrides=overrides)
    stop = Stop(limit)  # before the session: its workers' time must not be up earlier
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
    record.write(out, plan, scale=scale, overrides=overrides)  # what is finished now counts
    return stop.reason, print_summary(session, stop)


def print_summary(session: Session, stop: Stop) -> int:
    """Say how a session ended; return how many runs failed, or were left though nothing told it to stop."""
    names = [job.name for job in session.jobs]
    done = {name for name in names if finished(session.results, name)}
    show(f"{len(done)} of {len(names)} runs are finished in {session.results}.")
    failed: dict[str, str] = {}
    for name in names:
        noted = failure(run_folder(session.results, name))
        if name not in done and noted is not None and session.name in noted["given_up"]:
            failed[name] = last_line(noted["error"])
    for error in dict.fromkeys(failed.values()):  # a missing data set fails all runs alike
        first, *more = (name for name in failed if failed[name] == error)
        show(f"failed: {first}{f' and {len(more)} more' if more else ''}: {error}")
    if failed:
        show(
            f"{len(failed)} failed; their output is in {session.results / 'runs'}/NAME/output.txt, and the "
            "same command tries them again."
        )
    left = len(names) - len(done) - len(failed)
    if left:
        print(f"stopped ({stop.reason or 'its workers died'}); the same command goes on.")
    else:
        show(f"report: intnacl report {session.results}")
    return len(failed) + (left if stop.reason is None else 0)
