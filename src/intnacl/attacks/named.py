"""Attacks as settings: a row of numbers with a name, and the one function that carries it out."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from intnacl.attacks.autoattack import autoattack
from intnacl.attacks.gradient import fgsm, pgd
from intnacl.errors import InputError, check_choice, check_eps


@dataclass(frozen=True, kw_only=True)
class AttackConfig:
    """One attack at one eps; AutoAttack chooses steps, step size and restarts itself: None."""

    name: str  # what the row is called
    method: str  # a key of METHODS
    eps: float
    steps: int | None = None
    step_size: float | None = None
    restarts: int | None = None
    random_start: bool = False
    clamp: bool = True  # FGSM: stay in the box [0, 1]
    images: int | None = None  # attack a fixed random selection of that many; None = all
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("method", self.method, METHODS)
        check_eps(self.eps)
        if self.images is not None and self.images < 1:
            raise InputError(f"images={self.images!r} must be at least 1, or None for all.")
        if self.method == "pgd" and None in (self.steps, self.step_size, self.restarts):
            raise InputError(f"{self.name}: pgd needs steps, step_size and restarts.")

    @property
    def passes(self) -> int | None:
        """Forward passes of an image at most; of AutoAttack's there is no telling."""
        if self.method == "autoattack":
            return None
        assert self.steps is not None
        assert self.restarts is not None
        return 1 + self.restarts * (self.steps + 1)


def named_attack(name: str, eps: float, /, **overrides: Any) -> AttackConfig:
    """A row of ATTACKS at this eps, with single settings replaced."""
    check_choice("attack", name, ATTACKS)
    check_eps(eps)
    return replace(ATTACKS[name](eps), **overrides)


def run(
    config: AttackConfig,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    generator: torch.Generator | None = None,
    batch_size: int = 256,
) -> Tensor:
    """Adversarial images of pixels in [0, 1], same shape; the generator draws PGD's starts.

    The model sees `batch_size` images at once; attacks of many steps fill their batches with those that
    still stand, so give all images in one call.
    """
    return METHODS[config.method](config, model, x, y, generator, batch_size)


def _fgsm(
    c: AttackConfig, model: nn.Module, x: Tensor, y: Tensor, _: torch.Generator | None, size: int
) -> Tensor:
    batches = zip(torch.split(x, size), torch.split(y, size), strict=True)
    return torch.cat([fgsm(model, *batch, c.eps, clamp=c.clamp) for batch in batches])


def _pgd(
    c: AttackConfig, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None, size: int
) -> Tensor:
    assert c.step_size is not None
    assert c.steps is not None
    assert c.restarts is not None
    schedule = (c.eps, c.step_size, c.steps, c.restarts)
    return pgd(model, x, y, *schedule, random_start=c.random_start, generator=generator, batch_size=size)


def _autoattack(
    c: AttackConfig, model: nn.Module, x: Tensor, y: Tensor, _: torch.Generator | None, size: int
) -> Tensor:
    return autoattack(model, x, y, c.eps, seed=c.seed, batch_size=size)


Method = Callable[[AttackConfig, nn.Module, Tensor, Tensor, torch.Generator | None, int], Tensor]
METHODS: dict[str, Method] = {"fgsm": _fgsm, "pgd": _pgd, "autoattack": _autoattack}


def _fgsm_row(eps: float) -> AttackConfig:
    return AttackConfig(name="fgsm", method="fgsm", eps=eps, steps=1, step_size=eps, restarts=1)


def _pgd_row(eps: float) -> AttackConfig:
    """The paper's settings: below eps = .005 every step lands on a corner of the ball."""
    return AttackConfig(
        name="pgd", method="pgd", eps=eps, steps=10, step_size=0.01, restarts=2, random_start=True
    )


def _pgd_tuned_row(eps: float) -> AttackConfig:
    return AttackConfig(
        name="pgd_tuned", method="pgd", eps=eps, steps=40, step_size=eps / 4, restarts=1, random_start=True
    )


def _autoattack_row(eps: float) -> AttackConfig:
    return AttackConfig(name="autoattack", method="autoattack", eps=eps, random_start=True)


ATTACKS: dict[str, Callable[[float], AttackConfig]] = {
    "fgsm": _fgsm_row,
    "pgd": _pgd_row,
    "pgd_tuned": _pgd_tuned_row,
    "autoattack": _autoattack_row,
}
# How rows are called in print.
ATTACK_NAMES = {
    "none": "none", "fgsm": "FGSM", "pgd": "PGD", "pgd_tuned": "PGD tuned", "autoattack": "AutoAttack",
    "worst_case": "worst case",
}  # fmt: skip
