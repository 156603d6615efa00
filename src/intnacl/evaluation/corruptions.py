"""Accuracy on corrupted images: each of the common corruptions at five severities, applied on the fly.

Shapes: N images, uint8 (N, 3, H, W), labels (N,). Accuracies are in percent of all images.
"""

from collections.abc import Callable
from typing import TypedDict

import torch
from torch import Tensor, nn

from intnacl.data.corruptions import SEVERITIES, corrupt
from intnacl.data.streamed import Images
from intnacl.evaluation.features import check_images, eval_mode, pixels
from intnacl.evaluation.precision import exact_float32

FORMAT = 1  # raise it when the same settings give other figures: stored ones are then measured again


class CorruptionFigures(TypedDict):
    """Accuracy on one corruption, and on clean images."""

    accuracy: float
    """The mean over the severities."""
    by_severity: list[float]
    """Accuracies at severities 1 to 5."""
    clean: float


def evaluate(
    classifier: nn.Module,
    images: Images,
    labels: Tensor,
    corruption: str,
    *,
    seed: int = 0,
    batch_size: int = 500,
    device: torch.device | str = "cpu",
    each: Callable[[int], None] = lambda images: None,
) -> CorruptionFigures:
    """Return the accuracy of a classifier, pixels in [0, 1] to logits, under a corruption.

    Images are corrupted on the CPU, so that they are the same wherever the classifier is. `each` is called
    with the number of images after each batch.
    """
    check_images(images, labels)
    right = dict.fromkeys((0, *SEVERITIES), 0)
    with exact_float32(), eval_mode(classifier), torch.inference_mode():
        classifier.to(device)
        for rows in torch.split(torch.arange(len(images)), batch_size):
            for severity in right:
                batch = images[rows]
                if severity:
                    batch = corrupt(batch, corruption, severity, seed=seed, places=rows.tolist())
                predicted = classifier(pixels(batch, device)).argmax(dim=1).cpu()
                right[severity] += int((predicted == labels[rows]).sum())
                each(len(rows))
    clean, *by_severity = (100 * count / len(images) for count in right.values())
    return {"accuracy": sum(by_severity) / len(by_severity), "by_severity": by_severity, "clean": clean}
