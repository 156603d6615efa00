"""Warnings that accuracy under attack may overestimate a model's robustness."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from intnacl.attacks.named import AttackRow, eps_text

RISE = 0.5  # percentage points by which accuracy may exceed that under a weaker attack
ZERO = 1.0  # percent of samples that may have a zero gradient


def accuracy_warnings(rows: Sequence[AttackRow]) -> list[str]:
    """Warn where accuracy rises with eps, or lies above FGSM's, by more than `RISE` points.

    Only rows over the same number of images are compared. Give all rows of a classifier, since a rise shows
    only between radii.
    """
    found = []
    for name, images in dict.fromkeys((row["name"], row["images"]) for row in rows):
        same = [row for row in rows if (row["name"], row["images"]) == (name, images)]
        for small, large in pairwise(sorted(same, key=lambda row: row["eps"])):
            if small["eps"] < large["eps"] and _is_above(large, small):
                rise = f"{_at(small)} to {_at(large)}"
                found.append(f"{name}: accuracy rises with eps, from {rise}; the attack is too weak.")
    one_step = {(row["eps"], row["images"]): row for row in rows if row["name"] == "fgsm"}
    tuned = {row["eps"] for row in rows if row["name"] == "pgd_tuned"}
    for row in rows:
        other = one_step.get((row["eps"], row["images"]))
        if other is not None and _is_above(row, other):
            gap = f"{_at(row)} is above FGSM's {_at(other)}"
            found.append(f"{row['name']}: {gap}; iterating should not weaken an attack.")
            if row["name"] == "pgd" and row["eps"] in tuned:
                found.append(f"at eps {eps_text(row['eps'])}, trust pgd_tuned, whose step size suits it.")
    return found


def _is_above(row: AttackRow, other: AttackRow) -> bool:
    return row["accuracy"] > other["accuracy"] + RISE


def _at(row: AttackRow) -> str:
    return f"{row['accuracy']:.1f} % at eps {eps_text(row['eps'])}"


def mode_warnings(classifier: nn.Module) -> list[str]:
    """Warn of modules in train mode."""
    training = [name or "the model itself" for name, part in classifier.named_modules() if part.training]
    if not training:
        return []
    return [f"the model was in train mode ({training[0]} first); it was evaluated in eval mode instead."]


def gradient_warnings(zero: float) -> list[str]:
    """Warn if more than `ZERO` percent of samples have a zero input gradient."""
    if zero <= ZERO:
        return []
    return [f"{zero:.1f} % of samples have a zero input gradient; gradient attacks overrate this model."]
