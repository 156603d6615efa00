"""The usual traps of accuracy under attack: signs that a figure overrates a model.

Shapes: N images, uint8 (N, 3, H, W), labels (N,). A classifier maps pixels in [0, 1] to logits. Rows are
those of `robustness.evaluate`.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from intnacl.attacks.gradient import cross_entropy, input_gradient
from intnacl.attacks.named import AttackRow

RISE = 0.5  # percentage points by which an attack may do worse than a weaker one
ZERO = 1.0  # percent of samples that may have a zero gradient


def zero_gradients(
    classifier: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
) -> float:
    """Percentage of samples whose input gradient is exactly zero: no gradient attack can move them."""
    zero = 0
    for rows in torch.split(torch.arange(len(images)), batch_size):
        x, y = images[rows].to(device).float() / 255, labels[rows].to(device)
        gradient = input_gradient(lambda x, y=y: cross_entropy(classifier(x), y), x)  # type: ignore[misc]
        zero += int((gradient.flatten(1) == 0).all(dim=1).sum())
    return 100 * zero / len(images)


def accuracy_warnings(rows: Sequence[AttackRow]) -> list[str]:
    """Warn where accuracy rises with eps, or lies above FGSM's, by more than `RISE` points.

    Only rows over equally many images are compared. Give all rows of a classifier: a rise shows between
    radii, however they were measured.
    """
    found = []
    for name, images in dict.fromkeys((row["name"], row["images"]) for row in rows):
        same = [row for row in rows if (row["name"], row["images"]) == (name, images)]
        for small, large in pairwise(sorted(same, key=lambda row: row["eps"])):
            if small["eps"] < large["eps"] and _is_above(large, small):
                rise = f"{_at(small)} to {_at(large)}"
                found.append(f"{name}: accuracy rises with eps, from {rise}; the attack is not at its best.")
    one_step = {(row["eps"], row["images"]): row for row in rows if row["name"] == "fgsm"}
    for row in rows:
        other = one_step.get((row["eps"], row["images"]))
        if other is not None and _is_above(row, other):
            gap = f"{_at(row)} is above FGSM's {_at(other)}"
            found.append(f"{row['name']}: {gap}; iterating should not weaken an attack.")
            if row["name"] == "pgd" and any(_is_tuned(one, row["eps"]) for one in rows):
                found.append(f"at eps {row['eps']:.4g}, trust pgd_tuned, whose steps suit it.")
    return found


def _is_above(row: AttackRow, other: AttackRow) -> bool:
    return row["accuracy"] > other["accuracy"] + RISE


def _is_tuned(row: AttackRow, eps: float) -> bool:
    return (row["name"], row["eps"]) == ("pgd_tuned", eps)


def _at(row: AttackRow) -> str:
    return f"{row['accuracy']:.1f} % at eps {row['eps']:.4g}"


def mode_warnings(classifier: nn.Module) -> list[str]:
    """Warn of parts in train mode."""
    training = [name or "the model itself" for name, part in classifier.named_modules() if part.training]
    if not training:
        return []
    return [f"the model was in train mode ({training[0]} first); it was evaluated in eval mode instead."]


def gradient_warnings(zero: float) -> list[str]:
    """Warn of more than `ZERO` percent without a gradient."""
    if zero <= ZERO:
        return []
    return [f"{zero:.1f} % of samples have a zero input gradient; gradient attacks overrate this model."]
