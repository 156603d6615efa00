"""Very small grids for tests, whose runs take about a second."""

from pathlib import Path
from typing import Any

from intnacl.paper.plan import Job, Plan, make_plan
from intnacl.paper.tables import Column, Row, Table

SMALL: dict[str, Any] = {
    "dataset": "digits", "train.epochs": 1, "train.batch_size": 512, "train.monitor_epochs": 0,
    "probe.max_iter": 3, "evaluation.images": 10, "evaluation.eps": (0.01,), "evaluation.attacks": ("fgsm",),
}  # fmt: skip


def table(rows: int = 1, epochs: tuple[int, ...] = (1,), name: str = "small", **settings: Any) -> Table:
    """Rows that differ in the temperature, columns that differ in the epochs."""
    return Table(
        name=name, title=f"A small table {name}", settings=SMALL | settings,
        rows=tuple(Row(label=f"t {i}", settings={"loss.temperature": 0.5 + i / 10}) for i in range(rows)),
        columns=tuple(Column(label=f"{n} epochs", settings={"train.epochs": n}) for n in epochs),
    )  # fmt: skip


def plan(rows: int = 1, epochs: tuple[int, ...] = (1,), **settings: Any) -> Plan:
    """Return the plan of such a table with seed 0."""
    return make_plan([table(rows, epochs, **settings)], [0])


def jobs(rows: int = 1, epochs: tuple[int, ...] = (1,), **settings: Any) -> tuple[Job, ...]:
    """Return only the runs of the plan."""
    return plan(rows, epochs, **settings).jobs


GRID = """
[[tables]]
name = "mine"
title = "My own grid"
figure = "curves"
x_label = "epochs"
[tables.settings]
dataset = "digits"
train = {{batch_size = 512, monitor_epochs = 0}}
probe.max_iter = 3
evaluation = {{images = 10, eps = [0.01], attacks = ["fgsm"]}}
[[tables.rows]]
label = "SimCLR"
[[tables.rows]]
label = "{label}"
preset = "debiased"
[[tables.columns]]
label = "1 epoch"
x = 1
settings = {{"train.epochs" = 1}}
[[tables.columns]]
label = "2 epochs"
x = 2
settings = {{"train.epochs" = 2}}
"""


def grid_file(path: Path, label: str = "Debiased") -> Path:
    """Write a user's grid with two losses and two milestones."""
    path.write_text(GRID.format(label=label))
    return path
