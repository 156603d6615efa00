"""Accuracy under attack, in [0, 1] pixel space, judged in float32, with checks for the usual pitfalls.

Shapes: N images, uint8 (N, 3, H, W), also streamed ones, labels (N,), n ≤ N of them attacked, P of a portion.
A classifier maps pixels in [0, 1] to logits. Accuracies are in percent of the attacked images.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from intnacl.attacks.autoattack import STAGES, autoattack
from intnacl.attacks.gradient import along, gradient_sign, input_gradient, plain_gradients
from intnacl.attacks.named import FGSM, Attack, AutoAttack
from intnacl.attacks.sanity import accuracy_warnings, gradient_warnings, mode_warnings
from intnacl.data.streamed import Images
from intnacl.errors import InputError
from intnacl.evaluation.attack_rows import RobustnessFigures, attack_row, percent, worst_case
from intnacl.evaluation.features import check_images, eval_mode, pixels
from intnacl.evaluation.precision import exact_float32, tf32_convolutions

FORMAT = 1  # raise it when the same settings give other figures: stored ones are then measured again
PORTION = 2**25  # pixels of the images that are attacked together: all of CIFAR's test images
CHUNK = 1024  # images per AutoAttack: enough for a GPU, few enough to lose little by an interruption


class Verdicts(NamedTuple):
    """The images of a portion that are right under an attack, on the CPU, in the order of `attack_order`."""

    attack: Attack
    start: int
    """The place of the portion's first image in that order."""
    right: Tensor
    """(n,) bool. It is shorter, or empty, if the attack is limited to fewer images."""
    clean: Tensor
    """(P,) bool: which images of the whole portion are right without an attack."""
    underway: str | None = None
    """For AutoAttack, the last of its attacks that has run on the portion, if others are to follow."""


class Underway(NamedTuple):
    """A portion of images on which AutoAttack was interrupted."""

    stage: str
    """The last of its attacks that has run on all of them."""
    right: Tensor
    """(n,) bool: which of them were right after it."""


def evaluate(
    classifier: nn.Module,
    images: Images,
    labels: Tensor,
    attacks: Sequence[Attack],
    *,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
) -> RobustnessFigures:
    """Return clean accuracy, accuracy under each attack, and the worst case at each eps.

    Raises InputError if the images or the classifier cannot be attacked.
    """
    if not isinstance(attacks, Sequence) or not all(isinstance(attack, Attack) for attack in attacks):
        raise InputError(
            f"attacks={attacks!r}: give a list of attacks, such as [named_attack('pgd_tuned', 8 / 255)]."
        )
    warnings = mode_warnings(classifier)
    tried = list(attacks) or [FGSM(eps=0.0)]
    clean: dict[Attack, list[Tensor]] = {attack: [] for attack in tried}
    right: dict[Attack, list[Tensor]] = {attack: [] for attack in tried}
    for found in verdicts(classifier, images, labels, tried, batch_size=batch_size, device=device):
        if found.underway is None:
            clean[found.attack].append(found.clean)
            right[found.attack].append(found.right)
    zero = zero_gradients(classifier, images, labels, batch_size=batch_size, device=device)
    right_n = {attack: torch.cat(right[attack]) for attack in attacks}
    return figures(torch.cat(clean[tried[0]]), right_n, zero, warnings)


def figures(
    clean_N: Tensor, right: Mapping[Attack, Tensor], zero: float, warnings: Sequence[str] = ()
) -> RobustnessFigures:
    """Return the figures of clean verdicts (N,) and each attack's (n,), with the share of zero gradients."""
    rows = [attack_row(attack, right_n, clean_N) for attack, right_n in right.items()]
    return {
        "clean": percent(clean_N),
        "images": len(clean_N),
        "attacks": rows,
        "worst_case": worst_case(clean_N, right),
        "zero_gradients": zero,
        "warnings": [*warnings, *gradient_warnings(zero), *accuracy_warnings(rows)],
    }


def verdicts(
    classifier: nn.Module,
    images: Images,
    labels: Tensor,
    attacks: Sequence[Attack],
    *,
    done: Mapping[Attack, int] | None = None,
    underway: Mapping[Attack, Underway] | None = None,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
) -> Iterator[Verdicts]:
    """Yield, portion by portion and attack by attack, which images stay right.

    `done` is the number of images, in the order of `attack_order`, that each attack has already finished:
    portions up to there are skipped. `underway` is what was last yielded for the portion after these, if
    AutoAttack was interrupted in it. Neither changes a verdict, and attacks do not change each other's
    verdicts: they share pixels, clean verdicts and the direction of FGSM.
    """
    check_images(images, labels)
    with _judging(classifier, device):
        _check_classifier(classifier, pixels(images[:2], device), labels)
    order, size = attack_order(len(images)), max(batch_size, PORTION // images.shape[1:].numel())
    for start in range(0, len(images), size):
        rows = order[start : start + size]
        left = [attack for attack in attacks if (done or {}).get(attack, 0) < start + len(rows)]
        if not left:
            continue
        with _judging(classifier, device):
            x, y = pixels(images[rows], device), labels[rows].to(device)
            clean = _is_right(classifier, x, y, batch_size)
        signs: dict[int, Tensor] = {}
        for attack in left:
            count = len(x) if attack.images is None else min(len(x), max(0, attack.images - start))
            if isinstance(attack, AutoAttack):
                already = (done or {}).get(attack, 0)
                for first in range(max(0, already - start), len(x), CHUNK):
                    rows_n = slice(first, max(first, min(first + CHUNK, count)))
                    begun = (underway or {}).get(attack) if start + first == already else None
                    for stage, right in _stages(
                        attack,
                        classifier,
                        x[rows_n],
                        y[rows_n],
                        clean[rows_n],
                        start + first,
                        begun,
                        batch_size,
                        device,
                    ):
                        whole = clean[first : first + CHUNK].cpu()
                        yield Verdicts(attack, start + first, right.cpu(), whole, stage)
                continue
            x_n, y_n = x[:count], y[:count]
            with _judging(classifier, device):
                if count == 0:
                    right = clean[:0]
                elif type(attack) is FGSM:
                    # One gradient serves every eps. It is the whole attack, so it is never taken in TF32.
                    if count not in signs:
                        batches = zip(torch.split(x_n, batch_size), torch.split(y_n, batch_size), strict=True)
                        signs[count] = torch.cat([gradient_sign(classifier, *batch) for batch in batches])
                    moved = along(x_n, signs[count], attack.eps, clamp=attack.clamp)
                    right = _is_right(classifier, moved, y_n, batch_size)
                else:
                    # Random starts depend on the seed and the place alone, not on how other portions fared.
                    search = partial(_attacked, attack, classifier, attack.seed + start, batch_size)
                    right = _still_right(search, classifier, x_n, y_n, batch_size) & clean[:count]
            yield Verdicts(attack, start, right.cpu(), clean.cpu())


def _stages(
    attack: AutoAttack,
    classifier: nn.Module,
    x: Tensor,
    y: Tensor,
    right: Tensor,
    start: int,
    begun: Underway | None,
    batch_size: int,
    device: torch.device | str,
) -> Iterator[tuple[str | None, Tensor]]:
    """Yield, after each of AutoAttack's attacks, its name (None for the last) and which images are right.

    `right` marks the images that are right without an attack; `start` is the place of the first image.
    """
    names = list(STAGES)
    if begun is not None:
        right, names = begun.right.to(right.device), names[names.index(begun.stage) + 1 :]
    for name in names:
        left = right.nonzero().squeeze(1)
        if len(left):

            def search(x: Tensor, y: Tensor, rows: Tensor, name: str = name, left: Tensor = left) -> Tensor:
                places = left[rows] + start
                return autoattack(
                    classifier,
                    x,
                    y,
                    attack.eps,
                    seed=attack.seed,
                    batch_size=batch_size,
                    stages=[name],
                    places=places,
                )

            right = right.clone()
            with _judging(classifier, device):
                right[left] = _still_right(search, classifier, x[left], y[left], batch_size)
        yield (None if name == names[-1] else name), right


def _attacked(
    attack: Attack, classifier: nn.Module, seed: int, batch_size: int, x: Tensor, y: Tensor, rows: Tensor
) -> Tensor:
    return attack(classifier, x, y, generator=torch.Generator().manual_seed(seed), batch_size=batch_size)


def _still_right(
    search: Callable[[Tensor, Tensor, Tensor], Tensor],
    classifier: nn.Module,
    x: Tensor,
    y: Tensor,
    batch_size: int,
) -> Tensor:
    """Return which images stay right under a search, judged in float32.

    The search runs in TF32; images that are wrong only because of its rounding are attacked again in float32.
    `search` takes images, labels, and the rows of these images in x.
    """
    rows = torch.arange(len(x), device=x.device)
    with tf32_convolutions():
        found = search(x, y, rows)
        right_in_tf32 = _is_right(classifier, found, y, batch_size)
    right = _is_right(classifier, found, y, batch_size)
    doubtful = right & ~right_in_tf32
    if doubtful.any():
        found = search(x[doubtful], y[doubtful], rows[doubtful])
        right[doubtful] = _is_right(classifier, found, y[doubtful], batch_size)
    return right


def _is_right(classifier: nn.Module, x: Tensor, y: Tensor, batch_size: int) -> Tensor:
    with torch.no_grad():
        return torch.cat([classifier(batch).argmax(dim=1) for batch in torch.split(x, batch_size)]) == y


def attack_order(count: int) -> Tensor:
    """Return the order in which `count` images are attacked: its first n are a fixed random selection."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))


def zero_gradients(
    classifier: nn.Module,
    images: Images,
    labels: Tensor,
    *,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
) -> float:
    """Return the percentage of (at most 1,024) samples that no gradient attack can move.

    Their input gradient is exactly zero, as where softmax saturates.
    """
    chosen = attack_order(len(images))[:1024]
    zero = 0
    with _judging(classifier, device):
        for rows in torch.split(chosen, batch_size):
            gradient, _ = input_gradient(classifier, pixels(images[rows], device), labels[rows].to(device))
            zero += int((gradient.flatten(1) == 0).all(dim=1).sum())
    return 100 * zero / len(chosen)


def examples(
    classifier: nn.Module,
    images: Tensor,
    labels: Tensor,
    attack: Attack,
    *,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """Return these images before and after an attack, on the CPU.

    `clean` and `adversarial` pixels, `labels`, and the classes `predicted` and `predicted_adversarial`.
    """
    check_images(images, labels)
    with _judging(classifier, device), torch.no_grad():
        x, y = pixels(images, device), labels.to(device)
        adversarial = attack(classifier, x, y, generator=torch.Generator().manual_seed(attack.seed))
        predicted = [classifier(batch).argmax(dim=1) for batch in (x, adversarial)]
    found = {"clean": x, "adversarial": adversarial, "labels": y}
    found |= {"predicted": predicted[0], "predicted_adversarial": predicted[1]}
    return {name: tensor.cpu() for name, tensor in found.items()}


def _check_classifier(classifier: nn.Module, x: Tensor, labels: Tensor) -> None:
    """Raise unless the classifier maps a few pixels x to logits of every class, with a gradient."""
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
            "the classifier's logits have no gradient with respect to x: leave detach(), no_grad(), argmax() "
            "and integers out of it."
        )


@contextmanager
def _judging(classifier: nn.Module, device: torch.device | str) -> Iterator[None]:
    """Keep the classifier on the device, in eval mode and float32, whatever modes the caller is in."""
    with exact_float32(), plain_gradients(torch.device(device)), eval_mode(classifier):
        classifier.to(device)
        yield
