"""What the console shows of a run's figures."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from intnacl.attacks.named import ATTACK_NAMES
from intnacl.console import print_table, print_warnings, two_decimals
from intnacl.runs.folder import RunFolder
from intnacl.runs.measurements import Part
from intnacl.runs.page import attacks_at, of_one_attack


def print_result(folder: RunFolder) -> None:
    """The accuracies of a finished run, and where its files are."""
    result = json.loads(folder.result.read_bytes())
    at = attacks_at(result)
    title = "accuracy in percent" + (f"; attacks at {at}" if at else "")
    print_table(title, ["data set", "clean", "FGSM", "PGD"], accuracy_rows(result))
    attacks = [row for row in result["attacks"] if not of_one_attack(row)]
    others = {row["name"] for row in attacks} - {"fgsm", "pgd", "worst_case"}
    if others or len({row["eps"] for row in attacks}) > 1:
        for name in result["accuracy"]:
            print_attacks(name, [row for row in attacks if row["dataset"] == name])
    print_warnings(result["warnings"])
    print(f"written: {folder.result}, {folder.page}")


def accuracy_rows(result: dict[str, Any]) -> list[list[str]]:
    """Data set, clean, FGSM, PGD: a row for each data set of a result."""
    return [
        [name, *(two_decimals(row[key]) for key in ("clean", "fgsm", "pgd"))]
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
        [ATTACK_NAMES.get(name, name), f"{images:,}", *(two_decimals(found.get(radius)) for radius in eps)]
        for (name, images), found in sorted(table.items(), key=lambda item: -item[0][1])
    ]
    print_table(
        f"{dataset}: accuracy in percent over eps", ["attack", "images", *(f"{e:.4g}" for e in eps)], lines
    )


def print_probes(parts: Iterable[Part]) -> None:
    """One line for each probe: the last epoch, and the best where there are epochs."""
    rows = []
    for part in parts:
        figures = part.figures
        found = (figures["accuracy"], figures.get("best_accuracy"), figures.get("train_accuracy"))
        tested = f"{figures['images']['test']:,}"
        rows.append([part.settings["dataset"], tested, *map(two_decimals, found), f"{part.time_s:.1f}"])
    heads = ["data set", "test images", "accuracy", "best epoch's", "on training", "seconds"]
    print_table("linear probe on frozen features, percent", heads, rows)
