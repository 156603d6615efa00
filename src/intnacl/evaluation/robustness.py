"""Accuracy under attack, in [0, 1] pixel space, judged in float32, with checks against its usual traps.

Shapes: N images, uint8 (N, 3, H, W), labels (N,), n ≤ N of them attacked. A classifier maps pixels in [0, 1]
to logits. Accuracies are in percent of the attacked images.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from intnacl.attacks.gradient import along, gradient_sign, plain_gradients
from intnacl.attacks.named import FGSM, Attack, AttackRow
from intnacl.attacks.sanity import accuracy_warnings, gradient_warnings, mode_warnings, zero_gradients
from intnacl.errors import InputError
from intnacl.evaluation.features import check_images, eval_mode, pixels
from intnacl.evaluation.precision import exact_float32, tf32_convolutions

PORTION = 2**25  # pixels of the images that are attacked together: all of CIFAR's test images

Keep = Callable[[Attack, int, Callable[[], Tensor]], Tensor]
"""Gives an attack's verdicts on the images from a place on: by the work, or remembered."""


def _not_kept(attack: Attack, place: int, work: Callable[[], Tensor]) -> Tensor:
    return work()


def evaluate(
    classifier: nn.Module,
    images: Tensor,
    labels: Tensor,
    attacks: Sequence[Attack],
    *,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
    keep: Keep = _not_kept,
) -> dict[str, Any]:
    """Clean accuracy, accuracy under each attack, and the worst case at each eps.

    Figures: `clean` and `images`; `attacks`, a list of {name, eps, steps, step_size, restarts, images,
    accuracy, clean}, where `clean` is the accuracy on the same images without the attack; `worst_case`, rows
    of the same kind that count a sample as right only if it is right clean and under every attack of that
    eps; `zero_gradients`, the percentage of (at most 1,024) samples whose input gradient is exactly zero;
    `warnings`, sentences about figures that should not be trusted.
    """
    check_images(images, labels)
    _check_attacks(attacks)
    warnings = mode_warnings(classifier)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    with _judging(classifier, device):
        _check_classifier(classifier, pixels(images[:2], device), labels)
        images, labels = images[order.to(images.device)], labels[order.to(labels.device)]
        clean_N, right = _right(classifier, images, labels, attacks, batch_size, device, keep)
        zero = zero_gradients(classifier, images[:1024], labels[:1024], batch_size=batch_size, device=device)
    rows = [_row(attack, right_n, clean_N) for attack, right_n in zip(attacks, right, strict=True)]
    return {
        "clean": _percent(clean_N),
        "images": len(images),
        "attacks": rows,
        "worst_case": _worst_case(clean_N, attacks, right),
        "zero_gradients": zero,
        "warnings": warnings + gradient_warnings(zero) + accuracy_warnings(rows),
    }


def examples(
    classifier: nn.Module,
    images: Tensor,
    labels: Tensor,
    attack: Attack,
    *,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """What an image grid shows of these images: clean and adversarial pixels, labels, both predictions."""
    check_images(images, labels)
    with _judging(classifier, device), torch.no_grad():
        x, y = pixels(images, device), labels.to(device)
        adversarial = attack(classifier, x, y, generator=torch.Generator().manual_seed(attack.seed))
        predicted = [classifier(batch).argmax(dim=1) for batch in (x, adversarial)]
    found = {"clean": x, "adversarial": adversarial, "labels": y}
    found |= {"predicted": predicted[0], "predicted_adversarial": predicted[1]}
    return {name: tensor.cpu() for name, tensor in found.items()}


def _check_attacks(attacks: Sequence[Attack]) -> None:
    listed = isinstance(attacks, Sequence)
    if not listed or not all(isinstance(attack, Attack) for attack in attacks):
        raise InputError(
            f"attacks={attacks!r}: give a list of attacks, such as [named_attack('pgd_tuned', 8 / 255)]."
        )


def _check_classifier(classifier: nn.Module, x: Tensor, labels: Tensor) -> None:
    """Raise unless a few pixels x become logits of every class, with a gradient."""
    logits = classifier(x.requires_grad_())
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(x):
        raise InputError(
            f"the classifier returned {shape} for {len(x)} images; attacks need logits ({len(x)}, classes)."
        )
    if labels.max() >= logits.shape[1]:
        raise InputError(
            f"label {labels.max()} is beyond the classifier's {logits.shape[1]} classes (from 0)."
        )
    if not logits.requires_grad or torch.autograd.grad(logits.sum(), x, allow_unused=True)[0] is None:
        raise InputError(
            "the classifier's logits have no gradient by its pixels: leave detach(), no_grad(), argmax() and "
            "integers out of it."
        )


@contextmanager
def _judging(classifier: nn.Module, device: torch.device | str) -> Iterator[None]:
    """The classifier on the device, in eval mode and float32, whatever modes the caller is in."""
    with exact_float32(), plain_gradients(torch.device(device)), eval_mode(classifier):
        classifier.to(device)
        yield


def _right(
    classifier: nn.Module,
    images: Tensor,
    labels: Tensor,
    attacks: Sequence[Attack],
    batch_size: int,
    device: torch.device | str,
    keep: Keep,
) -> tuple[Tensor, list[Tensor]]:
    """Which images are right, and for each attack, which of the first `config.images` stay so."""
    clean: list[Tensor] = []
    right: list[list[Tensor]] = [[] for _ in attacks]
    for rows in torch.split(torch.arange(len(images)), max(batch_size, PORTION // images[0].numel())):
        x, y = pixels(images[rows], device), labels[rows].to(device)
        portion = _Portion(classifier, x, y, batch_size, place=int(rows[0]))
        clean.append(portion.clean.cpu())
        for attack, found in zip(attacks, right, strict=True):
            left = len(images) if attack.images is None else attack.images
            count = min(len(rows), max(0, left - int(rows[0])))
            found.append(keep(attack, portion.place, partial(portion.under, attack, count)).cpu())
    return torch.cat(clean), [torch.cat(found) for found in right]


class _Portion:
    """Images that are attacked together: x (P, 3, H, W) pixels, y (P,) labels, from `place` on in the set."""

    def __init__(self, classifier: nn.Module, x: Tensor, y: Tensor, batch_size: int, place: int) -> None:
        self.classifier, self.x, self.y, self.batch_size, self.place = classifier, x, y, batch_size, place
        self.clean = self.right(x, y)
        self._signs: dict[int, Tensor] = {}

    def sign(self, count: int) -> Tensor:
        """FGSM's direction for the first `count` images: one gradient for every eps."""
        if count not in self._signs:
            batches = [torch.split(part[:count], self.batch_size) for part in (self.x, self.y)]
            signs = [gradient_sign(self.classifier, *batch) for batch in zip(*batches, strict=True)]
            self._signs[count] = torch.cat(signs)
        return self._signs[count]

    def right(self, x: Tensor, y: Tensor) -> Tensor:
        """Which images are classified as y."""
        with torch.no_grad():
            batches = torch.split(x, self.batch_size)
            return torch.cat([self.classifier(batch).argmax(dim=1) for batch in batches]) == y

    def under(self, attack: Attack, count: int) -> Tensor:
        """Which of the first `count` images stay right.

        Attacks of many steps search in TF32 and are judged in float32: whoever only TF32's rounding fools is
        attacked again in float32. Whoever is wrong without an attack stays so. FGSM's one step is its
        gradient's: never in TF32.
        """
        x, y = self.x[:count], self.y[:count]
        if len(x) == 0:
            return y.bool()
        if isinstance(attack, FGSM):
            return self.right(along(x, self.sign(count), attack.eps, clamp=attack.clamp), y)
        with tf32_convolutions():
            found = self._attacked(attack, x, y)
            stands = self.right(found, y)
        right = self.right(found, y)
        doubtful = right & ~stands
        if doubtful.any():
            x, y = x[doubtful], y[doubtful]
            right[doubtful] = self.right(self._attacked(attack, x, y), y)
        return right & self.clean[:count]

    def _attacked(self, attack: Attack, x: Tensor, y: Tensor) -> Tensor:
        """Starts depend on the seed and the place alone, not on how other portions fared."""
        generator = torch.Generator().manual_seed(attack.seed + self.place)
        return attack(self.classifier, x, y, generator=generator, batch_size=self.batch_size)


def _row(attack: Attack | None, right_n: Tensor, clean_N: Tensor, eps: float = 0.0) -> AttackRow:
    """The row of an attack; of None, the worst case at `eps`."""
    return {
        "name": attack.name if attack else "worst_case",
        "eps": attack.eps if attack else eps,
        "steps": attack.settings()["steps"] if attack else None,
        "step_size": attack.settings()["step_size"] if attack else None,
        "restarts": attack.settings()["restarts"] if attack else None,
        "images": len(right_n),
        "accuracy": _percent(right_n),
        "clean": _percent(clean_N[: len(right_n)]),
    }


def _worst_case(clean_N: Tensor, attacks: Sequence[Attack], right: Sequence[Tensor]) -> list[AttackRow]:
    """One row per eps, over the images that all of its attacks saw."""
    rows = []
    for eps in sorted({attack.eps for attack in attacks}):
        verdicts = [clean_N] + [r for attack, r in zip(attacks, right, strict=True) if attack.eps == eps]
        count = min(len(verdict) for verdict in verdicts)
        worst = torch.stack([verdict[:count] for verdict in verdicts]).all(dim=0)
        rows.append(_row(None, worst, clean_N, eps))
    return rows


def _percent(right_n: Tensor) -> float:
    return 100 * int(right_n.sum()) / len(right_n)
