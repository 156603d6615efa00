"""ALF, the adversarial linear fine-tuning of the RobustSSL benchmark: a linear layer on a frozen encoder,
trained on images that are attacked again in every step.

Shapes: N training and T test images, B a batch, F features, C classes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from intnacl.attacks.training_view import Model, ascend
from intnacl.data import draws
from intnacl.data.batches import batch_indices, steps_per_epoch
from intnacl.data.draws import check_seed
from intnacl.data.streamed import Images
from intnacl.errors import InputError, Settings, check_count, check_number, must, setting
from intnacl.evaluation.features import check_pair, extract, frozen
from intnacl.evaluation.precision import tf32_convolutions
from intnacl.evaluation.probe import Classifier, as_linear

FORMAT = 1  # raise it when the same settings give other figures: stored ones are then measured again
START = 0xFFFFFFFE  # in place of the view's number in the generator's counter: the attack's random starts
SHARE = must(lambda v: 0 <= v <= 1, "a share from 0 to 1")
Augment = Callable[[Tensor, int], Tensor]


class AlfFigures(TypedDict):
    """Accuracy on clean images in percent, and the number of classes."""

    accuracy: float
    train_accuracy: float
    """Accuracy on attacked, augmented images in the last epoch, before the step on each batch."""
    classes: int


@dataclass(frozen=True, kw_only=True)
class AlfConfig(Settings):
    """Adversarial training of the linear layer. The defaults are the benchmark's for DeACL on CIFAR-10
    (`setup_hyperparameter` of its vanilla fine-tuning); for ACL and DynACL on CIFAR-100, lr is 0.05."""

    prefix: ClassVar[str] = "alf."
    epochs: int = setting(25, check_count)
    """Passes over the training images."""
    batch_size: int = setting(512, check_count)
    """Images per batch."""
    lr: float = setting(0.01, check_number)
    """Learning rate of SGD, divided by ten at each of the two ends below."""
    first_end: float = setting(0.6, SHARE)
    """Share of the steps with the full rate: 15 of 25 epochs."""
    second_end: float = setting(0.8, SHARE)
    """Share of the steps after which the rate is a hundredth: 20 of 25 epochs."""
    momentum: float = setting(0.9, check_number)
    """Momentum of SGD."""
    weight_decay: float = setting(2e-4, check_number)
    """Weight decay, which is added to the gradient, also to the bias's."""
    eps: float = setting(8 / 255, SHARE)
    """Radius of the attack in pixel values from 0 to 1; 0: clean images, which is the benchmark's SLF."""
    steps: int = setting(10, check_count)
    """Steps of the attack."""
    step_size: float = setting(2 / 255, check_number)
    """Size of each step in pixel values."""
    seed: int = setting(0, check_seed)
    """Random seed for batches, views and random starts of the attack."""


def evaluate(
    encoder: nn.Module,
    train: tuple[Images, Tensor],
    test: tuple[Images, Tensor],
    augment: Augment,
    config: AlfConfig | None = None,
    *,
    device: torch.device | str = "cpu",
) -> tuple[Classifier, AlfFigures]:
    """Train the layer from zero by SGD on attacked images, and return its classifier and figures.

    `augment(images, step)` maps uint8 (B, 3, H, W) on the device to pixels in [0, 1]. The encoder stays in
    eval mode and does not change.
    """
    config = config or AlfConfig()
    check_pair(train, test)
    encoder.to(device)
    classes = int(max(train[1].max(), test[1].max())) + 1
    width = extract(encoder, test[0][:1], device=device).shape[1]
    linear = as_linear(torch.zeros(classes, width), torch.zeros(classes)).to(device)
    optimizer = torch.optim.SGD(
        linear.parameters(), lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay
    )
    n, batch_size = len(train[0]), min(config.batch_size, len(train[0]))
    steps_in_epoch = steps_per_epoch(n, batch_size)
    steps, right = config.epochs * steps_in_epoch, torch.zeros((), dtype=torch.int64, device=device)
    model = nn.Sequential(encoder, linear)
    with frozen(encoder), tf32_convolutions():
        for step in range(steps):
            done = step / steps
            optimizer.param_groups[0]["lr"] = config.lr * 0.1 ** (
                (done >= config.first_end) + (done >= config.second_end)
            )
            index = batch_indices(config.seed, step, n, batch_size)
            y = train[1][index].to(device)
            x = augment(train[0][index].to(device), step)
            if config.eps > 0:
                pixels = draws.uniform(
                    config.seed, step, START, torch.arange(batch_size, device=x.device), x[0].numel()
                )
                start = x + config.eps * (2 * pixels - 1).view_as(x)
                x = attacked(model, x, y, start, config.eps, config.step_size, config.steps)
            with torch.no_grad():
                features_BF = encoder(x).float()
            logits_BC = linear(features_BF)
            if step >= steps - steps_in_epoch:
                right += (logits_BC.detach().argmax(1) == y).sum()
            loss = functional.cross_entropy(logits_BC, y)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    if not linear.weight.isfinite().all():
        raise InputError(f"the adversarial probe diverged at lr={config.lr}: lower alf.lr.")
    classifier = Classifier(encoder, linear.requires_grad_(False)).eval()
    with torch.no_grad():
        predicted_T = linear(extract(encoder, test[0], device=device)).argmax(dim=1)
    return classifier, {
        "accuracy": 100 * int((predicted_T == test[1].to(device)).sum()) / len(test[1]),
        "train_accuracy": 100 * int(right) / (steps_in_epoch * batch_size),
        "classes": classes,
    }


def attacked(
    model: Model, x: Tensor, y: Tensor, start: Tensor, eps: float, step_size: float, steps: int
) -> Tensor:
    """Return x after sign steps that raise the cross-entropy, each clamped to ball and box."""

    def cross_entropy(moved: Tensor) -> Tensor:
        return functional.cross_entropy(model(moved).float(), y, reduction="sum")

    return ascend(cross_entropy, x, start, eps, step_size, steps)
