"""The paper's grid: every published value has its cell, and shared runs are one; its tiny form on digits."""

import pytest

from intnacl.errors import InputError
from intnacl.paper import published
from intnacl.paper.grid import PAPER, pick, shrink, tables_of
from intnacl.paper.plan import Plan, make_plan
from intnacl.paper.published import departures
from intnacl.paper.tables import Column, Row, Table

# Cells with a published value, by the paper's own count of its tables' numbers.
PUBLISHED = {
    "table2": 80, "table3": 80, "table4": 28, "nacl_simclr": 120, "nacl_debiased_hardneg": 120,
    "intnacl": 120, "nacl_pgd": 180, "more_epochs": 66,
}  # fmt: skip


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(PAPER, [0], universe=PAPER)


def _found(plan: Plan, name: str) -> list[tuple[str, str, str, published.Value | None]]:
    jobs = {job.name: job for job in plan.jobs}
    table = next(table for table in PAPER if table.name == name)
    return [
        (run[0], column.dataset or config.dataset, column.metric,
         published.find(config, column.dataset or config.dataset, column.metric, column.eps))
        for row in plan.cells[name]
        for run, column in zip(row, table.columns, strict=True)
        for config in [jobs[run[0]].config]
    ]  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_cell_of_the_tables_has_its_published_value(plan: Plan, name: str) -> None:
    cells = _found(plan, name)
    assert len(cells) == PUBLISHED[name]
    assert all(value is not None for *_, value in cells)


def test_every_published_value_has_a_cell(plan: Plan) -> None:
    values = {found[-1] for table in PAPER for found in _found(plan, table.name) if found[-1]}
    assert values == set(published.values().values())


def test_known_cells_have_the_printed_values(plan: Plan) -> None:
    (table3,) = pick(PAPER, ("3",))
    rows = {row.label + row.group: i for i, row in enumerate(table3.rows)}
    i = rows["M = 5MIXNCA(g2, λ = 0.9, α = 1)"]
    values = [value for *_, value in _found(plan, "table3")][4 * i : 4 * i + 4]
    assert values == [(56.86, 0.11), (41.09, 0.31), (76.91, 0.21), (60.09, 0.39)]


def test_every_run_is_the_papers_setting(plan: Plan) -> None:
    assert {reason for job in plan.jobs for reason in departures(job.config)} == set()


def test_shared_runs_are_one(plan: Plan) -> None:
    assert len(plan.jobs) == 153
    simclr = {
        plan.cells[name][0][0][0]
        for name in ("main", "table2", "nacl_simclr", "more_epochs", "figure1", "figure_eps")
    }
    assert len(simclr) == 1


def test_strong_attacks_are_run_at_one_radius_and_autoattack_only_when_asked(plan: Plan) -> None:
    names = {
        name for table in ("main", "main_beside") for row in plan.cells[table] for name in row[0].values()
    }
    wanted = [job.config.evaluation for job in plan.jobs if job.name in names]
    assert len(wanted) == 11
    for evaluation in wanted:
        assert set(evaluation.attacks) == {"fgsm", "pgd", "pgd_tuned"}
        assert evaluation.eps == (0.002,)
        assert evaluation.fgsm_eps == (0.004, 0.008, 0.016, 0.032)


def test_a_run_has_the_same_name_whatever_was_asked_for(plan: Plan) -> None:
    alone = make_plan(pick(PAPER, ("2",)), [0], universe=PAPER)
    assert alone.cells["table2"] == plan.cells["table2"]


def test_an_unknown_table_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"table='figure_labda' is unknown; did you mean 'figure_lambda'"):
        pick(PAPER, ("figure_labda",))
    with pytest.raises(InputError, match="table='99' is unknown"):
        pick(PAPER, ("99",))
    with pytest.raises(InputError, match="--all"):
        pick(PAPER, ())


def test_tiny_has_the_same_tables_on_digits() -> None:
    tiny = tables_of("tiny")
    assert [table.name for table in tiny] == [table.name for table in PAPER]
    small = make_plan(tiny, [0], universe=tiny)
    assert {job.config.dataset for job in small.jobs} == {"digits"}
    assert max(job.config.train.epochs for job in small.jobs) == 11  # eleven milestones, an epoch each
    assert all(departures(job.config) for job in small.jobs)


def test_tiny_keeps_milestones_apart_and_names_what_is_trained() -> None:
    rows = tuple(Row(label=str(n), settings={"train.epochs": n}) for n in (100, 400, 7))
    columns = (
        Column(label="CIFAR-100 clean", dataset="cifar100"),
        Column(label="→ CIFAR-10 clean", dataset="cifar10"),
        Column(label="minutes for 400 epochs", settings={"train.epochs": 400}, x=400),
    )
    small = shrink(Table(name="t", title="t", rows=rows, columns=columns), (100, 200, 400))
    assert [row.settings["train.epochs"] for row in small.rows] == [1, 3, 1]
    assert [(column.label, column.dataset, column.x) for column in small.columns] == [
        ("digits clean", None, None),
        ("minutes for 3 epochs", None, 3),
    ]
