"""Rows of accuracies from verdicts on single images, and the worst case over several attacks.

Shapes: N images, n of them attacked.
"""

from collections.abc import Mapping
from typing import TypedDict

import torch
from torch import Tensor

from intnacl.attacks.named import Attack, AttackRow


class RobustnessFigures(TypedDict):
    """Accuracy without attack, under each attack, and in the worst case at each eps."""

    clean: float
    images: int
    attacks: list[AttackRow]
    worst_case: list[AttackRow]
    zero_gradients: float
    """Percentage of (at most 1,024) samples whose input gradient is exactly zero."""
    warnings: list[str]
    """Sentences about figures that should not be trusted."""


def attack_row(attack: Attack, right_n: Tensor, clean_N: Tensor) -> AttackRow:
    """Return an attack's accuracy on the images that it saw, from its verdicts and the clean ones."""
    settings = attack.settings()
    return {
        "name": attack.name,
        "eps": attack.eps,
        "steps": settings["steps"],
        "step_size": settings["step_size"],
        "restarts": settings["restarts"],
        "images": len(right_n),
        "accuracy": percent(right_n),
        "clean": percent(clean_N[: len(right_n)]),
    }


def worst_case(clean_N: Tensor, right: Mapping[Attack, Tensor]) -> list[AttackRow]:
    """Return the worst case at each eps, over the images that all attacks of that eps saw.

    An image counts as right only if it is right without an attack and under all of them.
    """
    rows: list[AttackRow] = []
    for eps in sorted({attack.eps for attack in right}):
        of = [clean_N, *(right_n for attack, right_n in right.items() if attack.eps == eps)]
        count = min(len(right_n) for right_n in of)
        worst = torch.stack([right_n[:count] for right_n in of]).all(dim=0)
        rows.append({
            "name": "worst_case", "eps": eps, "steps": None, "step_size": None, "restarts": None,
            "images": count, "accuracy": percent(worst), "clean": percent(clean_N[:count]),
        })  # fmt: skip
    return rows


def percent(right_n: Tensor) -> float:
    """Return the share of images that are classified right, in percent."""
    return 100 * int(right_n.sum()) / len(right_n)
