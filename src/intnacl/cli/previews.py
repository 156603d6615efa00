"""The adversarial view as `intnacl datasets show` draws it, and the networks that can make it.

Shapes: R images, 3 channels, H and W an image's rows and columns.
"""

from pathlib import Path

from torch import Tensor, nn

from intnacl.attacks.training_view import adversarial_view
from intnacl.errors import InputError
from intnacl.models.batchnorm import stacked
from intnacl.models.encoders import ContrastiveModel, Encoder, build_model
from intnacl.models.weights import from_pretrained, read_header
from intnacl.runs.resolve import resolve


def adversarial_columns(network: nn.Module, anchors: Tensor, eps: float) -> dict[str, Tensor]:
    """Title -> images: the adversarial views of anchors (R,3,H,W), and their changes around grey."""
    if len(anchors) < 2:
        raise InputError("one image has no adversarial view, which takes the others for negatives: eps=0.")
    with stacked(network, [(1, True)]):
        views = adversarial_view(network, anchors, eps)
    gain = 0.5 / eps
    return {"adversarial": views, f"change × {gain:.0f}": 0.5 + gain * (views - anchors)}


def untrained_model(dataset: str, image_size: int, seed: int) -> ContrastiveModel:
    """The model with which training on this data set begins."""
    config = resolve({"dataset": dataset}).encoder
    return build_model(config, image_size=image_size, adversarial=True, seed=seed)


def trained_encoder(run: Path, image_size: int) -> Encoder:
    """The encoder of a finished run, for images of the size that it was trained on."""
    encoder, wanted = from_pretrained(run), int(read_header(run)["image_size"])
    if wanted != image_size:
        raise InputError(
            f"{run} was trained on {wanted}×{wanted} images, but these have side {image_size}: take the "
            f"run's data set, or --size {wanted} for your own images."
        )
    return encoder
