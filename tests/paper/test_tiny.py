"""Tables on the digits: the same rows, a small run behind every cell, and nothing of the paper's."""

from intnacl.paper.grid import PAPER, tables_of
from intnacl.paper.plan import make_plan
from intnacl.paper.setting import departures
from intnacl.paper.tables import Column, Row, Table
from intnacl.paper.tiny import shrunk


def test_tiny_has_the_same_tables_on_digits() -> None:
    tiny = tables_of("tiny")
    assert [table.name for table in tiny] == [table.name for table in PAPER]
    small = make_plan(tiny, [0], universe=tiny)
    assert {job.config.dataset for job in small.jobs} == {"digits"}
    assert max(job.config.train.epochs for job in small.jobs) == 11  # eleven milestones, an epoch each
    assert all(departures(job.config) for job in small.jobs)


def test_milestones_stay_apart_and_transfer_falls_away() -> None:
    rows = tuple(Row(label=str(n), settings={"train.epochs": n}) for n in (100, 400, 7))
    columns = (
        Column(label="CIFAR-100 clean", dataset="cifar100"),
        Column(label="→ CIFAR-10 clean", dataset="cifar10"),
    )
    small = shrunk(Table(name="t", title="t", rows=rows, columns=columns), (100, 200, 400))
    assert [row.settings["train.epochs"] for row in small.rows] == [1, 3, 1]
    assert [(column.label, column.dataset) for column in small.columns] == [("digits clean", None)]


def test_labels_and_axes_name_the_epochs_that_are_trained() -> None:
    columns = tuple(
        Column(label=f"minutes for {n} epochs", settings={"train.epochs": n}, x=n) for n in (100, 400)
    )
    small = shrunk(Table(name="t", title="t", rows=(Row(label="r"),), columns=columns), (100, 200, 400))
    assert [(column.label, column.x) for column in small.columns] == [
        ("minutes for 1 epochs", 1),
        ("minutes for 3 epochs", 3),
    ]
