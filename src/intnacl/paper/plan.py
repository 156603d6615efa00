"""From tables to runs: what two tables share is trained once.

Runs that differ only in their epochs, under a constant learning rate, are milestones of one training: each
goes on from the last state of the one before.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from intnacl.attacks.named import named_attack
from intnacl.errors import InputError, check_choice
from intnacl.paper.run_names import canonical, run_name, training_key
from intnacl.paper.tables import Column, Row, Table
from intnacl.runs.config import EvaluationConfig, RunConfig, resolve


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run to be done."""

    name: str
    """The name of its folder."""
    config: RunConfig
    parent: str | None = None
    """The run whose last state it goes on from."""
    goes_on: bool = False
    """Whether some longer run may go on from it."""
    shorter: tuple[str, ...] = ()
    """The runs that it might go on from, the longest first."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The runs behind tables: `cells[table][row][column][seed]` is the name of a run."""

    tables: tuple[Table, ...]
    jobs: tuple[Job, ...]
    cells: Mapping[str, list[list[dict[int, str]]]]


def make_plan(
    tables: Sequence[Table],
    seeds: Sequence[int],
    *,
    universe: Sequence[Table] | None = None,
    overrides: Mapping[str, Any] | None = None,
    device: torch.device | None = None,
) -> Plan:
    """The runs of `tables` for each seed.

    What a run measures is what all tables of `universe` want from it, so that its name does not depend on
    the tables that were asked for.
    """
    requests = [
        request for table in universe or tables for request in _requests(table, overrides or {}, device)
    ]
    needs = _needs(requests)
    chains = _chains(needs)
    cells: dict[str, list[list[dict[int, str]]]] = {
        table.name: [[{} for _ in table.columns] for _ in table.rows] for table in tables
    }
    jobs: dict[str, Job] = {}
    job_of = cache(lambda key, seed: _job(key, seed, needs, chains))
    for request in requests:
        if request.table in cells:
            for seed in seeds:
                job = job_of(request.key, seed)
                cells[request.table][request.row][request.column][seed] = job.name
                jobs[job.name] = job
    return Plan(tables=tuple(tables), jobs=_chained(jobs.values()), cells=cells)


def jobs_of(plan: Plan, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> tuple[Job, ...]:
    """The runs behind rows of these labels, or "GROUP, LABEL"s, and columns of these; none named: all."""
    check_names(plan.tables, rows, columns)
    found = (runs for table in plan.tables for _, runs in runs_by_row(plan, table, rows, columns))
    return only(plan, set[str]().union(*found))


def only(plan: Plan, names: Container[str]) -> tuple[Job, ...]:
    """The runs of these names, as they are done where no others are."""
    return _chained(job for job in plan.jobs if job.name in names)


def check_names(tables: Sequence[Table], rows: Sequence[str], columns: Sequence[str]) -> None:
    """Raise unless the tables have every row and column, and one of them has some of both."""
    of_rows = [{name for row in table.rows for name in row.names} for table in tables]
    of_columns = [{column.label for column in table.columns} for table in tables]
    for name in rows:
        check_choice("row", name, set[str]().union(*of_rows))
    for name in columns:
        check_choice("column", name, set[str]().union(*of_columns))
    both = (
        not (a.isdisjoint(rows) or b.isdisjoint(columns)) for a, b in zip(of_rows, of_columns, strict=True)
    )
    if rows and columns and not any(both):
        raise InputError(f"no table has both rows {', '.join(rows)} and columns {', '.join(columns)}.")


def runs_by_row(
    plan: Plan, table: Table, rows: Sequence[str] = (), columns: Sequence[str] = ()
) -> list[tuple[Row, set[str]]]:
    """The rows of a table, all or those named, with their runs in all columns or in those named."""
    taken = [j for j, column in enumerate(table.columns) if not columns or column.label in columns]
    return [
        (row, {run for j in taken for run in cells[j].values()})
        for row, cells in zip(table.rows, plan.cells[table.name], strict=True)
        if taken and (not rows or not row.names.isdisjoint(rows))
    ]


@dataclass(frozen=True, kw_only=True)
class _Request:
    """What one cell wants: a run (of seed 0) and a figure of it."""

    table: str
    row: int
    column: int
    config: RunConfig
    key: str
    figure: Column


def _requests(table: Table, overrides: Mapping[str, Any], device: torch.device | None) -> Iterator[_Request]:
    known: dict[str, tuple[RunConfig, str]] = {}  # many columns of a row are figures of one run
    for i, j, settings in table.cells():
        if "seed" in settings or "seed" in overrides:
            raise InputError(f"table {table.name!r}: seed is no setting of a cell; take --seeds or --trials.")
        text = repr(settings)
        if text not in known:
            config = canonical(resolve({**settings, **overrides}, device=device))
            if not config.evaluation.eps:
                raise InputError(
                    f"table {table.name!r}: evaluation.eps is empty; give at least one radius, such as 0.002."
                )
            known[text] = config, training_key(config)
        config, key = known[text]
        yield _Request(table=table.name, row=i, column=j, config=config, key=key, figure=table.columns[j])


def _needs(requests: Iterable[_Request]) -> dict[str, RunConfig]:
    """Training key -> the configuration that measures what every cell of it wants."""
    groups: dict[str, list[_Request]] = defaultdict(list)
    for request in requests:
        groups[request.key].append(request)
    return {key: _united(group) for key, group in groups.items()}


def _united(group: list[_Request]) -> RunConfig:
    first = group[0].config
    base = first.evaluation
    for request in group:
        _check_protocol(request, base)
    wanted = [part for request in group for part in (request.config.evaluation, _of_figure(request))]
    attacks = _unique(name for part in wanted for name in part.attacks)
    eps = _unique(radius for part in wanted for radius in part.eps)
    fgsm_eps = (radius for part in wanted for radius in part.fgsm_eps)
    evaluation = replace(
        base,
        transfer=_unique(name for part in wanted for name in part.transfer),
        attacks=attacks,
        eps=(base.eps[0], *sorted(_unique(eps, base.eps[0]))),
        fgsm_eps=tuple(sorted(_unique(fgsm_eps, *(eps if "fgsm" in attacks else ())))),
    )
    for radius, names in evaluation.rounds:
        for name in names:
            named_attack(name, radius)  # refused before anything is trained
    return replace(first, evaluation=evaluation)


def _of_figure(request: _Request) -> EvaluationConfig:
    """What the figure itself asks for: nothing, if it is only shown where it has been measured."""
    figure, own = request.figure, request.config.dataset
    if figure.optional:
        return EvaluationConfig(attacks=(), eps=())
    radii = () if figure.eps is None else (figure.eps,)
    return EvaluationConfig(
        transfer=() if figure.dataset is None or figure.dataset == own else (figure.dataset,),
        attacks=() if figure.metric in ("clean", "minutes") else (figure.metric,),
        eps=() if figure.metric == "fgsm" else radii,
        fgsm_eps=radii if figure.metric == "fgsm" else (),
    )


def _check_protocol(request: _Request, base: EvaluationConfig) -> None:
    """A run has one first radius and one number of images: cells of others would show their figures."""
    own = request.config.evaluation
    pairs = (("eps", own.eps[:1], base.eps[:1]), ("images", own.images, base.images))
    for name, asked, taken in pairs:
        if asked != taken:
            raise InputError(
                f"table {request.table!r}, column {request.figure.label!r}: evaluation.{name} is "
                f"{asked}, but another cell of the same training has {taken}. Give every cell the same, and "
                "further radii as eps of their columns."
            )


def _unique(values: Iterable[Any], *without: Any) -> tuple[Any, ...]:
    return tuple(value for value in dict.fromkeys(values) if value not in without)


def _chains(needs: Mapping[str, RunConfig]) -> dict[str, str]:
    """Training key -> the key of the longest shorter training that it goes on from."""
    groups: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for key, config in needs.items():
        if config.train.schedule == "constant" and config.train.warmup_epochs == 0:
            any_length = replace(config, train=replace(config.train, epochs=1))
            groups[training_key(any_length)].append((config.train.epochs, key))
    chains: dict[str, str] = {}
    for group in groups.values():
        ordered = [key for _, key in sorted(group)]
        chains |= dict(zip(ordered[1:], ordered, strict=False))
    return chains


def _job(key: str, seed: int, needs: Mapping[str, RunConfig], chains: Mapping[str, str]) -> Job:
    config = replace(needs[key], seed=seed)
    shorter = tuple(run_name(replace(needs[before], seed=seed)) for before in _before(key, chains))
    return Job(name=run_name(config), config=config, goes_on=key in chains.values(), shorter=shorter)


def _before(key: str, chains: Mapping[str, str]) -> Iterator[str]:
    while key in chains:
        key = chains[key]
        yield key


def _chained(jobs: Iterable[Job]) -> tuple[Job, ...]:
    """Each goes on from the longest of its shorter runs that is asked for too; else from its beginning."""
    there = {job.name: job for job in jobs}
    return tuple(
        replace(job, parent=next((name for name in job.shorter if name in there), None))
        for job in sorted(there.values(), key=lambda job: (job.config.train.epochs, job.config.seed))
    )
