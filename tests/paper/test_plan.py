"""The runs behind tables: shared runs, their measurements, milestones and estimated hours."""

import dataclasses
from typing import Any

import pytest
import torch
from grids import jobs, table

from intnacl.errors import InputError
from intnacl.paper.plan import STEP_S, Job, estimated_seconds, jobs_of, make_plan, runs_by_row
from intnacl.paper.tables import Column, Row
from intnacl.runs.resolve import resolve
from mistakes import must_refuse


def test_milestones_continue_each_other():
    first, second, third = jobs(epochs=(1, 4, 2))
    assert [job.config.train.epochs for job in (first, second, third)] == [1, 2, 4]
    assert [job.parent for job in (first, second, third)] == [None, first.name, second.name]
    assert [job.goes_on for job in (first, second, third)] == [True, True, False]


@pytest.mark.parametrize("settings", [{"train.schedule": "cosine"}, {"train.warmup_epochs": 1.0}])
def test_rates_that_depend_on_the_length_have_no_milestones(settings):
    assert [job.parent for job in jobs(epochs=(1, 2), **settings)] == [None, None]


WIDE = (
    Column(label="a", metric="pgd", eps=0.05),
    Column(label="b", metric="fgsm", eps=0.02, dataset="cifar10"),
    Column(label="c", metric="autoattack", eps=0.3, dataset="tinyimagenet", optional=True),
)
WEAKER = (Column(label="a", metric="pgd"), Column(label="b", metric="pgd", eps=0.002))
SETTINGS = {"evaluation.attacks": ("pgd",), "evaluation.fgsm_eps": (0.01, 0.02)}
BOTH = ("fgsm", "pgd")


@pytest.mark.parametrize(
    ("tables", "rounds"),
    [
        # The first radius stays the protocol's, also beside a smaller one.
        ([table(), dataclasses.replace(table(name="wide"), columns=WIDE)],
         ((0.01, BOTH), (0.05, BOTH), (0.02, ("fgsm",)))),
        ([dataclasses.replace(table(), columns=WEAKER)], ((0.01, BOTH), (0.002, BOTH))),
        # FGSM at a radius of other attacks is measured, and what cells ask for by their own settings.
        ([table(**SETTINGS)], ((0.01, ("pgd",)), (0.01, ("fgsm",)), (0.02, ("fgsm",)))),
        ([table(), table(name="more", **SETTINGS, **{"evaluation.eps": (0.01, 0.05)})],
         ((0.01, BOTH), (0.05, BOTH), (0.02, ("fgsm",)))),
    ],
    ids=["columns", "a smaller radius", "its own", "settings"],
)  # fmt: skip
def test_a_run_measures_what_all_tables_need(tables, rounds):
    (job,) = make_plan(tables[:1], [0], universe=tables).jobs
    assert job.config.evaluation.rounds == rounds
    assert job.config.evaluation.transfer == (("cifar10",) if len(tables[-1].columns) == 3 else ())


@pytest.mark.parametrize(("key", "value"), [("evaluation.eps", (0.1,)), ("evaluation.images", 20)])
def test_cells_of_one_training_cannot_have_two_protocols(key, value):
    columns = (Column(label="a", metric="fgsm"), Column(label="b", metric="fgsm", settings={key: value}))
    with pytest.raises(InputError, match=rf"'small', column 'b': {key}"):
        make_plan([dataclasses.replace(table(), columns=columns)], [0])


def test_rows_of_a_table_can_be_selected():
    rows = (
        Row(label="SimCLR", settings={"loss.negatives": "g0"}),
        Row(label="M = 1", group="NCA(g2)", settings={"loss.negatives": "g2"}),
        Row(label="M = 1", group="NCA(g1)", settings={"loss.negatives": "g1"}),
    )
    plan = make_plan([dataclasses.replace(table(epochs=(1, 2)), rows=rows)], [0, 1])

    def found(*names: str) -> list[tuple[str, int, int]]:
        return [(job.config.loss.negatives, job.config.train.epochs, job.config.seed)
                for job in jobs_of(plan, names)]  # fmt: skip

    assert jobs_of(plan) == plan.jobs
    assert found("SimCLR") == [("g0", 1, 0), ("g0", 1, 1), ("g0", 2, 0), ("g0", 2, 1)]
    assert {g for g, *_ in found("NCA(g2), M = 1")} == {"g2"}
    assert {g for g, *_ in found("M = 1")} == {"g1", "g2"}
    assert all(job.parent for job in jobs_of(plan, ("SimCLR",)) if job.config.train.epochs == 2)
    must_refuse(found, "SimCLE", r"row='SimCLE' is unknown; did you mean 'SimCLR'")


def test_columns_of_a_table_can_be_selected():
    """A run continues a shorter one that is selected too, and waits for no other."""
    short = Row(label="M = 1", settings={"loss.negatives": "g2"})
    other = dataclasses.replace(table(name="other"), columns=(Column(label="clean"),), rows=(short,))
    whole = table(epochs=(1, 2, 3))
    plan = make_plan([whole, other], [0])
    labels = [column.label for column in plan.tables[0].columns]

    def found(*columns: str) -> list[tuple[int, bool]]:
        return [(job.config.train.epochs, job.parent is not None) for job in jobs_of(plan, columns=columns)]

    assert found(*labels[:2]) == [(1, False), (2, True)]
    assert found(labels[1]) == [(2, False)]
    assert found(labels[0], labels[2]) == [(1, False), (3, True)]
    assert runs_by_row(plan, other, columns=labels[:1]) == []
    must_refuse(found, "4 epochs", r"column='4 epochs' is unknown")
    with pytest.raises(InputError, match=rf"no table has both rows M = 1 and columns {labels[0]}"):
        jobs_of(plan, ["M = 1"], labels[:1])


def test_the_device_decides_the_precision_and_thereby_the_name():
    cpu, gpu = (make_plan([table()], [0], device=torch.device(d)).jobs[0] for d in ("cpu", "cuda"))
    assert (cpu.config.train.precision, gpu.config.train.precision) == ("fp32", "bf16")
    assert cpu.name != gpu.name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"evaluation.attacks": ("fgms",)}, "attack='fgms' is unknown; did you mean 'fgsm'"),
        ({"evaluation.eps": (-1.0,)}, "eps=-1.0 is out of range"),
        ({"evaluation.eps": ()}, "'small': evaluation.eps is empty"),
        ({"seed": 3}, "use --seeds or --trials"),
    ],
)
def test_impossible_runs_are_refused_before_any_run(settings, message):
    must_refuse(make_plan, [table(**settings)], [0], message)
    must_refuse(make_plan, [table()], [0], message, overrides=settings)


def _seconds(settings: dict[str, Any], preset: str = "simclr") -> float | None:
    """Return the estimate for a single run."""
    job = Job(name="run", config=resolve(settings, preset=preset))
    return estimated_seconds([job]).get("run")


@pytest.mark.parametrize(
    ("preset", "more", "views"),
    [
        ("simclr", {}, 2), ("simclr", {"loss.num_positives": 3}, 4), ("adv", {}, 4), ("intcl", {}, 4),
        ("intnacl", {}, 8), ("simclr", {"objective": "supervised"}, 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("dataset", "area"), [("cifar100", 1), ("tinyimagenet", 4)])
def test_an_estimate_grows_with_the_views_and_their_area(preset, more, views, dataset, area):
    longer, shorter = (
        _seconds({"dataset": dataset, "train.batch_size": 250, "train.epochs": n, **more}, preset)
        for n in (101, 1)
    )
    assert longer is not None
    assert shorter is not None
    updates = 100 * {"cifar100": 200, "tinyimagenet": 400}[dataset]
    assert longer - shorter == pytest.approx(updates * STEP_S * 250 / 256 * views / 2 * area)


def test_a_milestone_costs_its_additional_epochs_and_unknown_data_sets_have_no_estimate():
    first, second = jobs(epochs=(1, 5))
    alone = estimated_seconds([second])[second.name]
    assert estimated_seconds((first, second))[second.name] < alone
    assert _seconds({"dataset": "folder:x"}) is None
