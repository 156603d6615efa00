"""From tables to runs: a run that several tables share is executed once.

Runs that differ only in their epochs, under a constant learning rate, are milestones of one training: each
continues from the last state of the previous one.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from intnacl.attacks.named import named_attack
from intnacl.data.datasets import DATASETS
from intnacl.errors import InputError, check_choice
from intnacl.paper.run_names import canonical, run_name, training_key
from intnacl.paper.tables import NOT_ATTACKED, Column, Row, Table
from intnacl.runs.config import RunConfig
from intnacl.runs.resolve import resolve

# Costs measured on one H200 (bf16, CUDA graphs), for images of 32×32 and ResNet-18.
STEP_S = 5.5e-3  # an update with two views of 256 images; it scales with the number and area of the views
VIEW_S = STEP_S / 2 / 256  # one view, forward and backward; an adversarial view costs about two
PROBE_S = 9 / 1000 / 50_000  # one image's features in one epoch of the probe: 9 s for 1000 epochs of CIFAR
ATTACK_S = 20 / 80 / 10_000  # one image, forward and backward: 20 s for 80 passes over 10,000 images
AUTOATTACK_PASSES = 1000  # a rough estimate
START_S = 40.0  # compilation


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run to be executed."""

    name: str
    """The name of its folder."""
    config: RunConfig
    parent: str | None = None
    """The run from whose last state it continues."""
    goes_on: bool = False
    """True if a longer run may continue from it."""
    shorter: tuple[str, ...] = ()
    """The runs from which it may continue, the longest first."""


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
    """Return the runs of `tables` for each seed.

    A run measures what all tables of `universe` need from it, so that its name does not depend on the
    selected tables.
    """
    wanted = [want for table in universe or tables for want in _wants(table, overrides or {}, device)]
    by_training: dict[str, list[_Want]] = defaultdict(list)
    for want in wanted:
        by_training[want.training].append(want)
    configs = {training: _merged(wants) for training, wants in by_training.items()}
    shorter = _shorter_trainings(configs)
    continued = {training for chain in shorter.values() for training in chain}
    config_of = cache(lambda training, seed: replace(configs[training], seed=seed))
    name_of = cache(lambda training, seed: run_name(config_of(training, seed)))
    cells: dict[str, list[list[dict[int, str]]]] = {
        table.name: [[{} for _ in table.columns] for _ in table.rows] for table in tables
    }
    jobs: dict[str, Job] = {}
    for want in wanted:
        for seed in seeds if want.table in cells else ():
            name = name_of(want.training, seed)
            cells[want.table][want.row][want.column][seed] = name
            if name not in jobs:
                jobs[name] = Job(
                    name=name,
                    config=config_of(want.training, seed),
                    goes_on=want.training in continued,
                    shorter=tuple(name_of(training, seed) for training in shorter.get(want.training, ())),
                )
    return Plan(tables=tuple(tables), jobs=_chained(jobs.values()), cells=cells)


def jobs_of(plan: Plan, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> tuple[Job, ...]:
    """Return the runs of the rows and columns with these labels (or "GROUP, LABEL"); none given: all."""
    check_names(plan.tables, rows, columns)
    found = (runs for table in plan.tables for _, runs in runs_by_row(plan, table, rows, columns))
    return only(plan, set[str]().union(*found))


def only(plan: Plan, names: Container[str]) -> tuple[Job, ...]:
    """Return the runs of these names, each with a parent among them if there is one."""
    return _chained(job for job in plan.jobs if job.name in names)


def check_names(tables: Sequence[Table], rows: Sequence[str], columns: Sequence[str]) -> None:
    """Raise unless the tables have every row and column, and one table has both a row and a column named."""
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
    """Return the rows of a table with their runs, by default for all rows and columns."""
    taken = [j for j, column in enumerate(table.columns) if not columns or column.label in columns]
    return [
        (row, {run for j in taken for run in cells[j].values()})
        for row, cells in zip(table.rows, plan.cells[table.name], strict=True)
        if taken and (not rows or not row.names.isdisjoint(rows))
    ]


@dataclass(frozen=True, kw_only=True)
class _Want:
    """A training (here with seed 0) and the figure of it that one cell shows."""

    table: str
    row: int
    column: int
    config: RunConfig
    training: str
    """Its `training_key`."""
    figure: Column


def _wants(table: Table, overrides: Mapping[str, Any], device: torch.device | None) -> list[_Want]:
    """Return the `_Want` of every cell of a table."""
    found = []
    known: dict[str, tuple[RunConfig, str]] = {}  # many columns of a row are figures of one run
    for i, j, settings in table.cells():
        if "seed" in settings or "seed" in overrides:
            raise InputError(
                f"table {table.name!r}: seed cannot be a setting of a cell; use --seeds or --trials."
            )
        text = repr(settings)
        if text not in known:
            config = canonical(resolve({**settings, **overrides}, device=device))
            if not config.evaluation.eps:
                raise InputError(
                    f"table {table.name!r}: evaluation.eps is empty; give at least one radius, such as 0.002."
                )
            known[text] = config, training_key(config)
        config, key = known[text]
        want = _Want(table=table.name, row=i, column=j, config=config, training=key, figure=table.columns[j])
        found.append(want)
    return found


def _merged(wants: Sequence[_Want]) -> RunConfig:
    """Return the configuration of one training that measures what all these cells show.

    A run has one first radius and one number of attacked images. A cell that asks for others is refused,
    because it would show the figures of another cell.
    """
    config = wants[0].config
    base = config.evaluation
    transfer, attacks, eps, fgsm_eps = [*base.transfer], [*base.attacks], [*base.eps], [*base.fgsm_eps]
    for want in wants:
        own, figure = want.config.evaluation, want.figure
        for key, asked, taken in (("eps", own.eps[:1], base.eps[:1]), ("images", own.images, base.images)):
            if asked != taken:
                raise InputError(
                    f"table {want.table!r}, column {figure.label!r}: evaluation.{key} is {asked}, but "
                    f"another cell of the same training has {taken}. Give all cells the same value, and "
                    "further radii as eps of their columns."
                )
        transfer += own.transfer
        attacks += own.attacks
        eps += own.eps
        fgsm_eps += own.fgsm_eps
        if figure.optional:  # shown if it has been measured by hand; no run measures it
            continue
        if figure.dataset not in (None, config.dataset):
            transfer.append(str(figure.dataset))
        if figure.metric not in NOT_ATTACKED:
            attacks.append(figure.metric)
        if figure.eps is not None:
            (fgsm_eps if figure.metric == "fgsm" else eps).append(figure.eps)
    covered = eps if "fgsm" in attacks else []
    evaluation = replace(
        base,
        transfer=tuple(dict.fromkeys(transfer)),
        attacks=tuple(dict.fromkeys(attacks)),
        eps=(base.eps[0], *sorted(set(eps) - {base.eps[0]})),
        fgsm_eps=tuple(sorted(set(fgsm_eps) - set(covered))),
    )
    for radius, names in evaluation.rounds:
        for name in names:
            named_attack(name, radius)  # raises for a bad radius before anything is trained
    return replace(config, evaluation=evaluation)


def _shorter_trainings(configs: Mapping[str, RunConfig]) -> dict[str, tuple[str, ...]]:
    """Return, for each training, the shorter ones from which it may continue, the longest first."""
    alike: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for key, config in configs.items():
        if config.train.schedule == "constant" and config.train.warmup_epochs == 0:
            any_length = replace(config, train=replace(config.train, epochs=1))
            alike[training_key(any_length)].append((config.train.epochs, key))
    return {
        key: tuple(before for _, before in reversed(group[:i]))
        for group in map(sorted, alike.values())
        for i, (_, key) in enumerate(group)
    }


def _chained(jobs: Iterable[Job]) -> tuple[Job, ...]:
    """Set each run's parent to the longest of its shorter runs among `jobs`, if there is one."""
    there = {job.name: job for job in jobs}
    return tuple(
        replace(job, parent=next((name for name in job.shorter if name in there), None))
        for job in sorted(there.values(), key=lambda job: (job.config.train.epochs, job.config.seed))
    )


def estimated_seconds(jobs: Sequence[Job]) -> dict[str, float]:
    """Estimate the seconds of each run on one H200, if the size of its data set is known.

    A run that continues another counts only its additional epochs.
    """
    epochs = {job.name: job.config.train.epochs for job in jobs}
    seconds = {}
    for job in jobs:
        config, entry = job.config, DATASETS.get(job.config.dataset)
        if entry is None or entry.counts is None or entry.side is None:
            continue
        views = 1 + config.loss.num_positives + (2.0 if config.loss.alpha > 0 else 0.0)
        if config.objective == "supervised":
            views = 1
        if config.objective == "distill":  # the attack, both images, the teacher's forward pass
            views = config.distill.steps + (4 if config.distill.perturbation else 2) + 1 / 3
        batch = config.train.batch_size
        images = (
            (entry.counts[0] - config.holdout)
            // batch
            * batch
            * (epochs[job.name] - epochs.get(job.parent or "", 0))
        )
        total = START_S + images * views * VIEW_S * (entry.side / 32) ** 2
        rounds = [named_attack(name, eps) for eps, names in config.evaluation.rounds for name in names]
        passes = sum(attack.passes or AUTOATTACK_PASSES for attack in rounds)
        for dataset in (config.dataset, *config.evaluation.transfer):
            known = DATASETS.get(dataset, entry)
            (train, test), side = known.counts or entry.counts, known.side or entry.side
            total += train * config.probe.epochs * PROBE_S if config.probe.solver == "adam" else 0.0
            total += min(test, config.evaluation.images or test) * passes * ATTACK_S * (side / 32) ** 2
        seconds[job.name] = total
    return seconds
