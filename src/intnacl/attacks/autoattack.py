"""AutoAttack, standard version (Croce & Hein 2020): APGD-CE, APGD-T, FAB-T and Square, one after the other.

Each attack gets only the images that the earlier ones did not fool, and drops images as soon as it has fooled
them. Random draws depend only on the seed and an image's place, so neither the batch size nor an interruption
changes a verdict. tests/attacks/test_autoattack.py compares the verdicts with those of pyautoattack.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from intnacl.attacks.apgd import apgd, cross_entropy, targeted_dlr
from intnacl.attacks.fab import fab
from intnacl.attacks.gradient import check_attack, plain_gradients
from intnacl.attacks.square import square
from intnacl.attacks.training_view import Model, model_output
from intnacl.errors import InputError, check_count

TARGETS = 9  # target classes of APGD-T and FAB-T: the most likely wrong ones
FEWEST_CLASSES = 4  # needed by the targeted loss
FORMAT = 2  # raise it when the same settings give other verdicts; 1 was pyautoattack's


def autoattack(
    model: Model,
    x: Tensor,
    y: Tensor,
    eps: float,
    *,
    seed: int = 0,
    batch_size: int = 256,
    stages: Sequence[str] | None = None,
    places: Tensor | None = None,
) -> Tensor:
    """Return adversarial images in the ℓ∞ ball and the box, or x where all attacks fail: (B, 3, H, W).

    With fewer than ten classes the targeted attacks try every wrong class; their loss needs at least
    `FEWEST_CLASSES`.

    Args:
        model: pixels to logits.
        x: pixels in [0, 1].
        y: labels.
        eps: radius of the ball.
        seed: seed of the random draws.
        batch_size: images per pass through the model.
        stages: names of the attacks, from `STAGES`; all by default.
        places: (B,), numbers that key the images' random draws; 0 … B − 1 by default.
    """
    check_attack(model, x, y, eps)
    check_count("batch_size", batch_size)
    x, y = x.detach(), y.long()
    places = torch.arange(len(x)) if places is None else places
    found = x.clone()
    with plain_gradients(x.device), torch.no_grad():
        logits = torch.cat([model_output(model, batch) for batch in torch.split(x, batch_size)])
        check_targets(logits.shape[1])
        # For an image that is classified correctly, the label comes first, and it is not a target.
        targets = logits.topk(min(TARGETS, logits.shape[1] - 1) + 1, dim=1).indices[:, 1:]
        left = (logits.argmax(dim=1) == y).nonzero().squeeze(1)
        for stage in STAGES if stages is None else stages:
            still = []
            for rows in torch.split(left, batch_size):
                drawn = [(seed << 32) + 64 * int(place) for place in places[rows.cpu()]]
                found[rows] = STAGES[stage](model, x[rows], y[rows], targets[rows], eps, drawn)
                still.append(rows[model_output(model, found[rows]).argmax(dim=1) == y[rows]])
            left = torch.cat(still) if still else left
    return found


def _on_targets(
    attack: Callable[[Tensor, Tensor, Tensor, Sequence[int]], Tensor],
    x: Tensor,
    y: Tensor,
    targets_BT: Tensor,
    seeds: Sequence[int],
) -> Tensor:
    """Return x attacked towards one target after the other; samples that are fooled drop out."""
    found, left = x.clone(), torch.arange(len(x), device=x.device)
    for number, target_B in enumerate(targets_BT.unbind(1)):
        if len(left) == 0:
            break
        own = [seeds[row] + number for row in left.tolist()]
        found[left] = attack(x[left], y[left], target_B[left], own)
        left = left[(found[left] == x[left]).flatten(1).all(1)]
    return found


def _apgd_ce(model: Model, x: Tensor, y: Tensor, targets: Tensor, eps: float, seeds: Sequence[int]) -> Tensor:
    return apgd(model, x, y, y, eps, cross_entropy, seeds)


def _apgd_t(model: Model, x: Tensor, y: Tensor, targets: Tensor, eps: float, seeds: Sequence[int]) -> Tensor:
    def attack(x: Tensor, y: Tensor, target: Tensor, seeds: Sequence[int]) -> Tensor:
        return apgd(model, x, y, target, eps, targeted_dlr, seeds)

    return _on_targets(attack, x, y, targets, [seed + 16 for seed in seeds])


def _fab_t(model: Model, x: Tensor, y: Tensor, targets: Tensor, eps: float, seeds: Sequence[int]) -> Tensor:
    def attack(x: Tensor, y: Tensor, target: Tensor, seeds: Sequence[int]) -> Tensor:
        return fab(model, x, y, target, eps)

    return _on_targets(attack, x, y, targets, seeds)


def _square(model: Model, x: Tensor, y: Tensor, targets: Tensor, eps: float, seeds: Sequence[int]) -> Tensor:
    return square(model, x, y, eps, [seed + 32 for seed in seeds])


STAGES: dict[str, Callable[[Model, Tensor, Tensor, Tensor, float, Sequence[int]], Tensor]] = {
    "apgd-ce": _apgd_ce,
    "apgd-t": _apgd_t,
    "fab-t": _fab_t,
    "square": _square,
}


def check_targets(classes: int) -> None:
    """Raise if there are too few classes for the targeted attacks."""
    if classes < FEWEST_CLASSES:
        raise InputError(
            f"AutoAttack's targeted loss needs at least {FEWEST_CLASSES} classes, not {classes}: use pgd."
        )
