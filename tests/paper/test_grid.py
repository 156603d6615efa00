"""The paper's grid and its published values: every value has its run, and is compared with no other."""

import pytest

from intnacl.paper import published
from intnacl.paper.grid import PAPER, pick, shrink, tables_of
from intnacl.paper.plan import Plan, make_plan
from intnacl.paper.published import choices, departures, figure_key, find
from intnacl.paper.tables import Column, Row, Table
from intnacl.runs.config import RunConfig
from intnacl.runs.resolve import resolve
from mistakes import refused

CIFAR = {"dataset": "cifar100"}
TINYIMAGENET = {"dataset": "tinyimagenet"}
INTCL_ONE = resolve({**TINYIMAGENET, "loss.weight": "one"}, preset="intcl")
SUPERVISED = {**CIFAR, "objective": "supervised", "train.epochs": 1000}
MIX = {"loss.nacl": "mixnca", "loss.negatives": "g2", "loss.num_positives": 2, "loss.lam": 0.5}
# Cells with a published value, by the paper's own count of its tables' numbers.
PUBLISHED = {
    "table2": 80, "table3": 80, "table4": 28, "nacl_simclr": 120, "nacl_debiased_hardneg": 120,
    "intnacl": 120, "nacl_pgd": 180, "more_epochs": 66,
}  # fmt: skip


def _cifar(preset: str = "simclr", **more: object) -> RunConfig:
    return resolve({**CIFAR, **more}, preset=preset)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(PAPER, [0], universe=PAPER)


@pytest.fixture(scope="module")
def keys(plan: Plan) -> dict[str, list[published.Key | None]]:
    """The figures that the runs of all cells measure, by table, without those of optional columns."""
    configs = {job.name: job.config for job in plan.jobs}
    return {
        table.name: [
            figure_key(config, column.dataset or config.dataset, column.metric, column.eps)
            for row in plan.cells[table.name]
            for cell, column in zip(row, table.columns, strict=True)
            for config in [configs[cell[0]]]
            if not column.optional
        ]
        for table in plan.tables
    }


def test_every_published_figure_has_a_run(keys):
    assert len(published.document()["values"]) == 800  # some are in several tables
    figures = published.values()
    assert len(figures) == 440
    assert set(figures) - {key for found in keys.values() for key in found} == set()
    for name, cells in PUBLISHED.items():
        assert len(keys[name]) == cells
        assert set(keys[name]) <= set(figures)
    by_length = {(name, n): sum(key[0] == name and key[-1] == n for key in figures)
                 for name, n in (("cifar100", 100), ("tinyimagenet", 100))}  # fmt: skip
    assert by_length == {("cifar100", 100): 350, ("tinyimagenet", 100): 24}
    assert sum(key[4] is None for key in figures) == 6  # supervised


@pytest.mark.parametrize(
    ("config", "dataset", "metric", "value"),
    [
        (_cifar(), "cifar100", "clean", (53.69, 0.25)),
        (_cifar(), "cifar10", "fgsm", (43.50, 0.41)),
        (_cifar("debiased_hardneg"), "cifar100", "pgd", (28.80, 0.48)),
        (_cifar("intcl"), "cifar100", "fgsm", (40.05, 0.67)),
        (_cifar("intnacl"), "cifar100", "clean", (59.43, 0.23)),
        (_cifar("intnacl", **{"loss.lam": 0.9}), "cifar10", "fgsm", (60.09, 0.39)),
        (_cifar(**MIX), "cifar10", "pgd", (46.67, 0.40)),
        (_cifar(**MIX, **{"train.epochs": 2000}), "cifar100", "clean", (67.85, None)),
        (resolve(SUPERVISED), "cifar100", "clean", (65.16, 0.32)),
        (INTCL_ONE, "tinyimagenet", "clean", (42.24, 0.14)),
        # Only drawn in the paper, or not in the paper at all.
        *((_cifar(preset), "cifar100", "clean", None) for preset in ("hardneg", "debiased", "adv")),
        (_cifar(**{"train.epochs": 99}), "cifar100", "clean", None),
        (_cifar(**{"loss.num_positives": 6}), "cifar100", "clean", None),
        (_cifar("intcl", **{"loss.alpha": 0.5}), "cifar100", "clean", None),
        (resolve({"dataset": "cifar10"}), "cifar10", "clean", None),
        (_cifar(**{"evaluation.eps": (0.004,)}), "cifar100", "fgsm", None),
        (_cifar(**{"evaluation.eps": (0.004,)}), "cifar100", "clean", (53.69, 0.25)),
    ],
)  # fmt: skip
def test_values_are_found_for_their_own_runs(config, dataset, metric, value):
    assert find(config, dataset, metric) == value


def test_values_are_found_only_at_the_published_radius():
    assert find(_cifar("debiased_hardneg"), "cifar100", "pgd", 0.002) is not None
    assert find(_cifar("debiased_hardneg"), "cifar100", "pgd", 0.004) is None


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        *((CIFAR, key, value) for key, value in (
            ("train.lr", 1e-3), ("train.batch_size", 128), ("train.schedule", "cosine"), ("train.epochs", 30),
            ("probe.epochs", 100), ("encoder.name", "resnet50"), ("augment.blur_p", 0.5),
            ("evaluation.images", 1000), ("loss.alpha", 0.5), ("adversary.negatives", "g2"),
        )),
        (TINYIMAGENET, "train.batch_size", 256), (TINYIMAGENET, "probe.epochs", 1000),
    ],
)  # fmt: skip
def test_a_setting_that_contradicts_the_paper_is_a_departure(settings, key, value):
    (reason,) = departures(resolve({**settings, key: value}))
    assert reason.startswith(f"{key} = {value}")
    assert departures(resolve({"dataset": "digits"})) == ["data set digits"]


@pytest.mark.parametrize(
    ("settings", "epochs"),
    [
        (CIFAR, (100, 200, *range(400, 2001, 200))), (TINYIMAGENET, (100,)),
        (SUPERVISED, (1000,)),
        ({**SUPERVISED, "augment": "crop_flip"}, (1000,)),  # its augmentation is open
        ({**CIFAR, "augment": "crop_flip"}, ()),
    ],
)  # fmt: skip
def test_lengths_of_training_are_the_papers(settings, epochs):
    tried = (1, 30, 300, *range(100, 2101, 100))
    kept = {n for n in tried if not departures(resolve({**settings, "train.epochs": n}))}
    assert kept == set(epochs)


@pytest.mark.parametrize(
    ("settings", "preset", "named"),
    [
        ({"augment.strength": 0.5, "encoder.head": "paper"}, "simclr",
         ["augment.strength = 0.5", "encoder.head = paper"]),
        ({}, "intnacl", []),
        ({"loss.weight": "loss"}, "intcl", ["loss.weight = loss"]),
        ({"loss.weight": "loss"}, "simclr", []),  # SimCLR has no robust term
        ({}, "adv", []),  # w = 1 is its row of the table
        ({"objective": "supervised"}, "simclr", []),
        ({**TINYIMAGENET, "adversary.eps": 0.015}, "intcl", ["adversary.eps = 0.015"]),
    ],
)  # fmt: skip
def test_a_setting_that_the_paper_leaves_open_is_a_choice(settings, preset, named):
    config = resolve({**CIFAR, **settings}, preset=preset)
    assert choices(config) == named
    assert config.objective == "supervised" or departures(config) == []


@pytest.mark.parametrize(
    ("train", "test", "found"),
    [(100_000, 10_000, None), (10_000, 1000, "10,000 + 1,000"), (100_000, 1000, "100,000 + 1,000")],
)
def test_a_part_of_a_data_set_is_a_departure(train, test, found):
    images = {"tinyimagenet": {"train": train, "test": test}, "folder:x": {"train": 1, "test": 1}}
    expected = [f"tinyimagenet has {found} images, not 100,000 + 10,000"] if found else []
    assert departures(resolve(TINYIMAGENET), {"protocol": {"images": images}}) == expected


def test_every_run_is_in_the_setting_of_the_paper_and_shared_runs_are_one(plan):
    assert {reason for job in plan.jobs for reason in departures(job.config)} == set()
    assert len(plan.jobs) == 153
    shared = ("main", "table2", "nacl_simclr", "more_epochs", "figure1", "figure_eps")
    assert len({plan.cells[name][0][0][0] for name in shared}) == 1  # SimCLR
    alone = make_plan(pick(PAPER, ("2",)), [0], universe=PAPER)
    assert alone.cells["table2"] == plan.cells["table2"]  # whatever is asked for beside it


def test_strong_attacks_are_run_at_one_radius_and_autoattack_only_when_asked(plan):
    names = {row[0][0] for table in ("main", "main_beside") for row in plan.cells[table]}
    wanted = [job.config.evaluation for job in plan.jobs if job.name in names]
    assert len(wanted) == 11
    for evaluation in wanted:
        assert set(evaluation.attacks) == {"fgsm", "pgd", "pgd_tuned"}
        assert evaluation.eps == (0.002,)
        assert evaluation.fgsm_eps == (0.004, 0.008, 0.016, 0.032)


test_an_unknown_table_is_refused_with_the_nearest = refused(
    lambda *names: pick(PAPER, names),
    ("figure_labda", "table='figure_labda' is unknown; did you mean 'figure_lambda'"),
    ("99", "table='99' is unknown"),
    ("--all",),
)


def test_tiny_has_the_same_tables_on_digits():
    tiny = tables_of("tiny")
    assert [table.name for table in tiny] == [table.name for table in PAPER]
    small = make_plan(tiny, [0], universe=tiny)
    assert {job.config.dataset for job in small.jobs} == {"digits"}
    assert max(job.config.train.epochs for job in small.jobs) == 11  # eleven milestones, an epoch each


def test_tiny_tables_keep_milestones_distinct_and_name_the_data_set():
    rows = tuple(Row(label=str(n), settings={"train.epochs": n}) for n in (100, 400, 7))
    columns = (
        Column(label="CIFAR-100 clean", dataset="cifar100"),
        Column(label="→ CIFAR-10 clean", dataset="cifar10"),
        Column(label="minutes for 400 epochs", settings={"train.epochs": 400}, x=400),
    )
    settings = {"dataset": "cifar100", "recipe": "strong", "holdout": 5000}
    small = shrink(Table(name="t", title="t", rows=rows, columns=columns, settings=settings))
    assert [row.settings["train.epochs"] for row in small.rows] == [2, 3, 1]
    kept = {"dataset": "digits", "encoder.name": "small", "recipe": "strong", "holdout": 200}
    assert kept.items() <= small.settings.items()
    assert [(column.label, column.dataset, column.x) for column in small.columns] == [
        ("digits clean", None, None),
        ("minutes for 3 epochs", None, 3),
    ]
