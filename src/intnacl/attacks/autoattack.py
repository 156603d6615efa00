"""AutoAttack (Croce & Hein 2020), standard version, through the optional package pyautoattack."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from intnacl.attacks.gradient import check_attack
from intnacl.attacks.training_view import Model, rows_of
from intnacl.errors import InputError, missing_extra

TARGETS = 9  # target classes of the standard version's APGD-T and FAB-T
FEWEST = 4  # classes that the targeted attacks' loss needs


def autoattack(
    model: Model, x: Tensor, y: Tensor, eps: float, *, seed: int = 0, batch_size: int = 256
) -> Tensor:
    """Return adversarial images (B, 3, H, W) in ℓ∞ ball and box by APGD-CE, APGD-T, FAB-T and Square.

    Each attack sees only the samples that the ones before it did not fool. With fewer than ten classes the
    targeted attacks try every wrong class; their loss needs at least `FEWEST`.
    """
    attack_class = require_autoattack()
    check_attack(model, x, y, eps)
    with torch.no_grad():
        classes = rows_of(model, x[:1]).shape[1]
    check_targets(classes)
    with _isolated(x):
        attack = attack_class(model, eps=eps, norm="Linf", version="standard", seed=seed, device=x.device)
        attack.apgd_targeted.n_target_classes = attack.fab.n_target_classes = min(TARGETS, classes - 1)
        adversarial, _ = attack.run_standard_evaluation(x, y, batch_size=batch_size)
    result: Tensor = adversarial.detach()
    return result


def check_targets(classes: int) -> None:
    """Raise if there are too few classes for the targeted attacks."""
    if classes < FEWEST:
        raise InputError(
            f"AutoAttack's targeted loss needs at least {FEWEST} classes, these are {classes}: use pgd."
        )


def require_autoattack() -> type:
    """Return the package's class, or raise an error that says how to install it."""
    try:
        from pyautoattack import AutoAttack
    except ImportError:
        raise missing_extra("pyautoattack", "autoattack", "AutoAttack") from None
    found: type = AutoAttack
    return found


@contextmanager
def _isolated(x: Tensor) -> Iterator[None]:
    """Turn autocast off, and undo at the end what the package does to generators, tracing and logs."""
    trace, logger = sys.gettrace(), logging.getLogger("auto-attack")
    level = logger.level
    logger.setLevel(logging.ERROR)
    devices = [x.device] if x.is_cuda else []
    try:
        with torch.random.fork_rng(devices=devices), torch.autocast(x.device.type, enabled=False):
            yield
    finally:
        logger.setLevel(level)
        sys.settrace(trace)
