"""A table on the embedded digits: a check of the machinery that says nothing about the paper."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from intnacl.paper.tables import Column, Settings, Table

TINY: dict[str, Any] = {
    "dataset": "digits", "evaluation.transfer": (), "train.epochs": 1, "train.batch_size": 128,
    "train.monitor_epochs": 0, "probe.solver": "lbfgs", "probe.max_iter": 10,
    "evaluation.eps": (0.002,), "evaluation.attacks": ("fgsm", "pgd"),
}  # fmt: skip


def shrunk(table: Table, milestones: Sequence[int]) -> Table:
    """The same rows and columns on the digits; columns that only differ in the data set fall together.

    Epochs of `milestones` become 1, 2, 3 …, so that longer trainings still go on from shorter ones.
    """
    rows = tuple(replace(row, settings=_settings(row.settings, milestones)) for row in table.rows)
    columns = tuple(_column(column, milestones) for column in table.columns if column.dataset != "cifar10")
    return replace(table, settings=TINY, rows=rows, columns=columns)


def _column(column: Column, milestones: Sequence[int]) -> Column:
    settings = _settings(column.settings, milestones)
    label = column.label.replace("TinyImageNet", "digits").replace("CIFAR-100", "digits")
    panel, x = column.panel.replace("CIFAR-100", "digits"), column.x
    if "train.epochs" in settings:
        before, epochs = column.settings["train.epochs"], settings["train.epochs"]
        label = label.replace(f"{before} epochs", f"{epochs} epochs")
        x = epochs if x == before else x
    return replace(column, dataset=None, label=label, panel=panel, x=x, settings=settings)


def _settings(settings: Settings, milestones: Sequence[int]) -> dict[str, Any]:
    changed = dict(settings)
    if "train.epochs" in changed:
        epochs = changed["train.epochs"]
        changed["train.epochs"] = milestones.index(epochs) + 1 if epochs in milestones else 1
    return changed
