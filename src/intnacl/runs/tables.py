"""What the console shows of a run's figures."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from intnacl.attacks.named import ATTACK_NAMES
from intnacl.runs.measurements import Part
from intnacl.runs.page import PAGE, attacks_at, of_one_attack
from intnacl.runs.pretrain import RESULT


def print_result(folder: Path) -> None:
    """The accuracies of a finished run, and where its files are."""
    result = json.loads((folder / RESULT).read_bytes())
    at = attacks_at(result)
    title = "accuracy in percent" + (f"; attacks at {at}" if at else "")
    print_table(title, ["data set", "clean", "FGSM", "PGD"], accuracy_rows(result))
    attacks = [row for row in result["attacks"] if not of_one_attack(row)]
    others = {row["name"] for row in attacks} - {"fgsm", "pgd", "worst_case"}
    if others or len({row["eps"] for row in attacks}) > 1:
        for name in result["accuracy"]:
            print_attacks(name, [row for row in attacks if row["dataset"] == name])
    print_warnings(result["warnings"])
    print(f"written: {folder / RESULT}, {folder / PAGE}")


def accuracy_rows(result: dict[str, Any]) -> list[list[str]]:
    """Data set, clean, FGSM, PGD: a row for each data set of a result."""
    return [
        [name, *(shown(row[key]) for key in ("clean", "fgsm", "pgd"))]
        for name, row in result["accuracy"].items()
    ]


def print_attacks(dataset: str, rows: Sequence[dict[str, Any]]) -> None:
    """Attacks as rows, eps as columns, those on the same images together; of worst cases, the lowest."""
    eps = sorted({row["eps"] for row in rows})
    table: dict[tuple[str, int], dict[float, float]] = {}
    for row in rows:
        table.setdefault(("none", row["images"]), dict.fromkeys(eps, row["clean"]))
        found = table.setdefault((row["name"], row["images"]), {})
        found[row["eps"]] = min(row["accuracy"], found.get(row["eps"], row["accuracy"]))
    lines = [
        [ATTACK_NAMES.get(name, name), f"{images:,}", *(shown(found.get(radius)) for radius in eps)]
        for (name, images), found in sorted(table.items(), key=lambda item: -item[0][1])
    ]
    print_table(
        f"{dataset}: accuracy in percent over eps", ["attack", "images", *(f"{e:.4g}" for e in eps)], lines
    )


def print_probes(parts: Iterable[Part]) -> None:
    """One line for each probe: the last epoch, and the best where there are epochs."""
    rows = [
        [
            part.settings["dataset"], f"{part.figures['images']['test']:,}", shown(part.figures["accuracy"]),
            shown(part.figures.get("best_accuracy")), shown(part.figures.get("train_accuracy")),
            f"{part.time_s:.1f}",
        ]
        for part in parts
    ]  # fmt: skip
    heads = ["data set", "test images", "accuracy", "best epoch's", "on training", "seconds"]
    print_table("linear probe on frozen features, percent", heads, rows)


def print_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table whose first column is text and whose others are numbers."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for i, head in enumerate(heads):
        # Names are folded, not cut: those of folders differ in their ends.
        table.add_column(head, justify="left" if i == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    print(f"\n{title}")
    Console(markup=False).print(table)  # a path may hold brackets


def print_warnings(warnings: Iterable[str]) -> None:
    """Each sentence once."""
    for warning in dict.fromkeys(warnings):
        print(f"warning: {warning}")


def shown(value: float | None) -> str:
    """Two digits, or a dash."""
    return "–" if value is None else f"{value:.2f}"
