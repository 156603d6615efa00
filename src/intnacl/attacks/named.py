"""Attacks as values: settings that can be compared, stored and called.

attack = named_attack("pgd_tuned", 8 / 255)
adversarial = attack(classifier, x, y)      # x: (B, 3, H, W) pixels in [0, 1], y: (B,) labels
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NotRequired, TypedDict

import torch
from torch import Generator, Tensor

from intnacl.attacks.autoattack import autoattack
from intnacl.attacks.gradient import fgsm, pgd
from intnacl.attacks.training_view import Model
from intnacl.errors import check_choice, check_count, check_eps


class AttackSettings(TypedDict):
    """An attack as it is stored with what was measured: the same ten keys for every attack."""

    name: str
    method: str
    eps: float
    steps: int | None
    step_size: float | None
    restarts: int | None
    random_start: bool
    clamp: bool
    images: int | None
    seed: int


class AttackRow(TypedDict):
    """Accuracy under one attack, or in the worst case of several, in percent of the attacked images.

    Steps, step size and restarts are None where the attack chooses them itself. `clean` is the accuracy on
    the same images without the attack.
    """

    name: str
    eps: float
    steps: int | None
    step_size: float | None
    restarts: int | None
    images: int
    accuracy: float
    clean: NotRequired[float]  # missing in results of earlier versions
    dataset: NotRequired[str]
    protocol: NotRequired[str]  # how the classifier was trained: slf, alf or aff; slf where it is missing
    of: NotRequired[list[str]]  # the attacks that a worst case is taken over
    split: NotRequired[str]


@dataclass(frozen=True, kw_only=True)
class Attack(ABC):
    """An attack at one radius in the ℓ∞ norm; subclasses add their settings."""

    method: ClassVar[str]
    """The kind of attack, as it is stored."""
    name: str
    """The name of its row."""
    eps: float
    """Radius in pixel values from 0 to 1."""
    images: int | None = None
    """Attack a fixed random selection of this many images; None: all."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_eps(self.eps)
        if self.images is not None:
            check_count("images", self.images)

    @abstractmethod
    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *, generator: Generator | None = None, batch_size: int = 256
    ) -> Tensor:
        """Return adversarial images of pixels x, same shape; the generator draws random starts.

        The model sees `batch_size` images at once. Attacks of many steps drop the images that they have
        fooled and fill their batches with the others, so give all images in one call.
        """

    @property
    def passes(self) -> int | None:
        """The maximum number of forward passes per image; None if it is not known in advance."""
        settings = self.settings()
        steps, restarts = settings["steps"], settings["restarts"]
        return None if steps is None or restarts is None else 1 + restarts * (steps + 1)

    def settings(self) -> AttackSettings:
        """Return the stored settings, which must not change: stored measurements are found by them."""
        return {
            "name": self.name,
            "method": self.method,
            "eps": self.eps,
            "steps": None,
            "step_size": None,
            "restarts": None,
            "random_start": True,
            "clamp": True,
            "images": self.images,
            "seed": self.seed,
        }


@dataclass(frozen=True, kw_only=True)
class FGSM(Attack):
    """One step along the sign of the gradient (Goodfellow et al. 2015)."""

    method = "fgsm"
    name: str = "fgsm"
    clamp: bool = True
    """Stay in the box [0, 1]."""

    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *, generator: Generator | None = None, batch_size: int = 256
    ) -> Tensor:
        batches = zip(torch.split(x, batch_size), torch.split(y, batch_size), strict=True)
        return torch.cat([fgsm(model, *batch, self.eps, clamp=self.clamp) for batch in batches])

    def settings(self) -> AttackSettings:
        """Return the stored settings: one step of size eps."""
        return super().settings() | {
            "steps": 1,
            "step_size": self.eps,
            "restarts": 1,
            "random_start": False,
            "clamp": self.clamp,
        }


@dataclass(frozen=True, kw_only=True)
class PGD(Attack):
    """Projected steps along the sign of the gradient (Madry et al. 2018)."""

    method = "pgd"
    name: str = "pgd"
    steps: int
    step_size: float
    restarts: int = 1
    random_start: bool = True

    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *, generator: Generator | None = None, batch_size: int = 256
    ) -> Tensor:
        schedule = (self.eps, self.step_size, self.steps, self.restarts)
        start = self.random_start
        return pgd(model, x, y, *schedule, random_start=start, generator=generator, batch_size=batch_size)

    def settings(self) -> AttackSettings:
        """Return the stored settings, with the schedule of the steps."""
        return super().settings() | {
            "steps": self.steps,
            "step_size": self.step_size,
            "restarts": self.restarts,
            "random_start": self.random_start,
        }


@dataclass(frozen=True, kw_only=True)
class AutoAttack(Attack):
    """Four attacks in turn, without settings of their own (Croce & Hein 2020)."""

    method = "autoattack"
    name: str = "autoattack"

    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *, generator: Generator | None = None, batch_size: int = 256
    ) -> Tensor:
        return autoattack(model, x, y, self.eps, seed=self.seed, batch_size=batch_size)


# "pgd" has the paper's settings: below eps = 0.005 every step lands on a corner of the ball.
ATTACKS: dict[str, Callable[[float], Attack]] = {
    "fgsm": lambda eps: FGSM(eps=eps),
    "pgd": lambda eps: PGD(eps=eps, steps=10, step_size=0.01, restarts=2),
    "pgd_tuned": lambda eps: PGD(name="pgd_tuned", eps=eps, steps=40, step_size=eps / 4),
    "autoattack": lambda eps: AutoAttack(eps=eps),
}
# The names of rows in tables and figures.
ATTACK_NAMES = {
    "none": "none", "fgsm": "FGSM", "pgd": "PGD", "pgd_tuned": "PGD tuned", "autoattack": "AutoAttack",
    "worst_case": "worst case",
}  # fmt: skip


def eps_text(eps: float) -> str:
    """Format a radius or step size: "8/255" for a whole number of grey levels, else such as "0.02"."""
    levels = round(255 * eps)
    is_fraction = abs(255 * eps - levels) < 1e-6 and levels % 51  # 51/255 is 0.2
    return f"{levels}/255" if is_fraction else f"{eps:.4g}"


def named_attack(name: str, eps: float, /, **overrides: Any) -> Attack:
    """Return the attack of this name at this eps, with `overrides` in place of single settings."""
    check_choice("attack", name, ATTACKS)
    check_eps(eps)
    attack = ATTACKS[name](eps)
    for key in overrides:
        check_choice(f"setting of {name}", key, (one.name for one in fields(attack)))
    return replace(attack, **overrides)
