"""Features of a frozen encoder, computed once, with a check that it stayed frozen.

Shapes: N images, B a batch of them, F features. Images are uint8 (N, 3, H, W), also streamed ones; an encoder
maps float pixels in [0, 1] (B, 3, H, W) to features (B, F) and normalises inside.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from intnacl.data.streamed import Images, portions
from intnacl.errors import InputError, check_count


def pixels(images: Tensor, device: torch.device | str) -> Tensor:
    """Return uint8 images as float32 pixels in [0, 1] on the device, same shape."""
    return images.to(device).float() / 255


def extract(
    encoder: nn.Module,
    images: Images,
    *,
    batch_size: int = 512,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Return the features of all images in eval mode, float32 (N, F) on `device`."""
    check_images(images)
    check_count("batch_size", batch_size)
    encoder.to(device)
    # Batches of nearly equal size: cuDNN repeats its search for the fastest convolutions for each size.
    batches = portions(images, math.ceil(len(images) / batch_size))
    with frozen(encoder), torch.inference_mode(), torch.autocast(torch.device(device).type, enabled=False):
        features = [encoder(pixels(batch, device)).float() for batch in batches]
    features_NF = torch.cat(features).clone()
    if features_NF.ndim != 2:
        raise InputError(f"the encoder returned {tuple(features_NF.shape)}; a probe needs features (N, F).")
    return features_NF


def select_rows(pieces: Iterable[Tensor], rows_R: Tensor) -> Tensor:
    """Return some rows (R, F), on the CPU, of features that come in pieces (n, F)."""
    found_RF, start = torch.empty(0), 0
    for piece_nF in pieces:
        if not start:
            found_RF = torch.empty(len(rows_R), piece_nF.shape[1], dtype=piece_nF.dtype)
        inside_R = (start <= rows_R) & (rows_R < start + len(piece_nF))
        found_RF[inside_R] = piece_nF[(rows_R[inside_R] - start).to(piece_nF.device)].cpu()
        start += len(piece_nF)
    return found_RF


def extract_pair(
    encoder: nn.Module,
    train: tuple[Images, Tensor],
    test: tuple[Images, Tensor],
    *,
    batch_size: int = 512,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, Tensor]:
    """Return the features of both splits, (N, F) and (T, F), after `check_pair`."""
    check_pair(train, test)
    train_NF = extract(encoder, train[0], batch_size=batch_size, device=device)
    return train_NF, extract(encoder, test[0], batch_size=batch_size, device=device)


@contextmanager
def frozen(encoder: nn.Module) -> Iterator[None]:
    """Keep the encoder in eval mode, then restore its modes and raise if a weight or buffer changed."""
    before = snapshot(encoder)
    with eval_mode(encoder):
        yield
    names = changed(before, encoder)
    if names:
        more = f" and {len(names) - 1} more" if names[1:] else ""
        raise InputError(
            "the encoder's weights or batch norm statistics changed while they should be frozen "
            f"({names[0]}{more}); its forward pass must not write to parameters or buffers in eval mode."
        )


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Keep every submodule in eval mode inside; give each its own mode back afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def snapshot(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of all parameters and buffers, on their devices."""
    return {name: tensor.detach().clone() for name, tensor in _state(module).items()}


def changed(before: dict[str, Tensor], module: nn.Module) -> list[str]:
    """Return the names of the parameters and buffers that are no longer as in the snapshot."""
    now = _state(module)
    return [name for name in before | now if not _same(before.get(name), now.get(name))]


def _state(module: nn.Module) -> dict[str, Tensor]:
    return dict([*module.named_parameters(), *module.named_buffers()])


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    """True if equal in every element, where NaN, as in an encoder that diverged, equals NaN."""
    if a is None or b is None or (a.dtype, a.shape, a.device) != (b.dtype, b.shape, b.device):
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())


def check_images(images: Images, labels: Tensor | None = None) -> None:
    """Raise unless images are uint8 (N, 3, H, W) and labels, where needed, one class ≥ 0 for each."""
    if images.dtype != torch.uint8 or images.ndim != 4 or len(images) == 0:
        got = f"{images.dtype} {tuple(images.shape)}"
        raise InputError(f"images are {got}; expected torch.uint8 (N, 3, H, W) with N > 0.")
    if labels is None:
        return
    if labels.shape != images.shape[:1]:
        raise InputError(
            f"{len(images)} images but labels of shape {tuple(labels.shape)}; expected one per image."
        )
    if labels.dtype != torch.int64 or labels.min() < 0:
        raise InputError(
            f"labels are {labels.dtype} from {labels.min()}; expected classes from 0 as torch.int64, which "
            "labels.long() gives; unlabelled data (-1) cannot be evaluated."
        )


def check_finite(*features: Tensor) -> None:
    """Raise if features (N, F) hold anything but finite numbers."""
    if not all(part.isfinite().all() for part in features):
        raise InputError(
            "the features hold nan or infinity: the encoder has diverged, and nothing can be measured on it."
        )


def check_pair(train: tuple[Images, Tensor], test: tuple[Images, Tensor]) -> None:
    """Raise unless both are labelled and their images have the same size."""
    for images, labels in (train, test):
        check_images(images, labels)
    if train[0].shape[1:] != test[0].shape[1:]:
        sizes = f"{tuple(train[0].shape[1:])} and {tuple(test[0].shape[1:])}"
        raise InputError(f"training and test images are {sizes}; both splits must have the same size.")
