"""The views of a batch: anchor and positive, extra positives, and mixed images.

Several ranks make the views that one process would: draws are keyed by the row's place in the global batch,
and the mixing partner of row i in the j-th mixed view is row i − j of the global batch. A rank that holds a
part of the batch also holds the few rows before its own (its halo, see `batches.rank_rows`), so it has these
partners without communication.

Shapes: B rows of this rank, h halo rows before them, V augmented views, C×H×W pixels.
"""

from dataclasses import replace
from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor

from intnacl.data.augment import augment
from intnacl.data.augmentations import AugmentConfig
from intnacl.errors import InputError, check_dense, has_floats, is_number


class Views(NamedTuple):
    """The views of a step's images: each entry is (B, 3, H, W) in [0, 1]."""

    plain: list[Tensor]  # x0, x1
    extra: list[Tensor]  # further views of the same images: NCA's M − 1 additional positives
    mixed: list[
        Tensor
    ]  # λ·x + (1−λ)·x of another image, with x set by `mix_of`: MIXNCA's M − 1 partial positives


def mix(x: Tensor, lam: float, shift: int) -> Tensor:
    """Return λ·x + (1−λ)·x.roll(shift): every row mixed with the row `shift` places before it.

    Args:
        x: any tensor of floats with the batch first, (B, …).
        lam: λ in [0, 1], the row's own share.
        shift: any integer that is not a multiple of B.
    """
    _check_lam(lam)
    check_dense("x", x, "floats, the batch first")
    if not has_floats(x):
        raise InputError(f"x is {x.dtype}: mix pixels in [0, 1], which images.float() / 255 gives.")
    if x.ndim == 0 or len(x) < 2:
        raise InputError(f"x has shape {tuple(x.shape)}: mixing needs a batch of at least 2 rows.")
    if not isinstance(shift, Integral):
        raise InputError(f"shift={shift!r} is of type {type(shift).__name__}: give a whole number.")
    if shift % len(x) == 0:
        raise InputError(
            f"shift={shift} mixes each of {len(x)} rows with itself: take one from 1 to {len(x) - 1}, or a "
            "larger batch. A DataLoader with drop_last=True leaves out a small last batch."
        )
    return lam * x + (1 - lam) * x.roll(shift % len(x), 0)


def make_views(
    images: Tensor,
    config: AugmentConfig,
    *,
    seed: int | Tensor,
    step: int | Tensor,
    rows: Tensor,
    extra: int = 0,
    mixed: int = 0,
    lam: float = 0.5,
    halo: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Views:
    """Return all views of one step, augmented as one batch, so that more views need no more kernels.

    Args:
        images: (h + B, 3, H, W) uint8, or float in [0, 1]: this rank's images, after those of its halo; or
            (V, h + B, 3, H, W), a crop of each for every view.
        config: the augmentation of every view.
        seed, step: the draws are a function of these and `rows`; both may be tensors on the device.
        rows: (h + B,) int64, the images' places in the global batch.
        extra, mixed: the number of views of each kind besides the two plain ones.
        lam: λ of the mixed views.
        halo: h, at least `mixed`; 0 when this process holds the whole batch.
        dtype: of the views.
    """
    assert halo == 0 or halo >= mixed, (halo, mixed)
    count = augmented_views(config, extra, mixed)
    images, config = one_per_view(images, config, count)
    stacked = augment(
        images,
        config,
        seed=seed,
        step=step,
        view=torch.arange(count, device=rows.device).repeat_interleave(len(rows)),
        rows=rows.repeat(count),
        dtype=dtype,
    )
    x_VBCHW = list(stacked.chunk(count))
    own = [x[halo:] for x in x_VBCHW[: 2 + extra]]
    x0, x1, *_ = x_VBCHW
    bases = {"x0": [x0] * mixed, "x1": [x1] * mixed, "own": x_VBCHW[2 + extra :]}[config.mix_of]
    return Views(plain=own[:2], extra=own[2:], mixed=_mixed(bases, lam, halo))


def augmented_views(config: AugmentConfig, extra: int, mixed: int) -> int:
    """Return V, the number of augmented views of an image: mixed views may be made from the others."""
    return 2 + extra + (mixed if config.mix_of == "own" else 0)


def one_per_view(images: Tensor, config: AugmentConfig, count: int) -> tuple[Tensor, AugmentConfig]:
    """Return an image for each of `count` views, and the augmentation that is still to be applied.

    Images are (B, 3, H, W), or crops (V, B, 3, H, W) that are not cropped again.
    """
    if images.ndim == 4:
        return images.repeat(count, 1, 1, 1), config
    assert len(images) == count, (images.shape, count)
    return images.flatten(0, 1), replace(config, crop_scale=None)


def _mixed(bases: list[Tensor], lam: float, halo: int) -> list[Tensor]:
    """Return mixed views j = 1, 2, … of the rows after the halo: base j with the row j places before."""
    _check_lam(lam)
    if halo == 0:
        if bases and len(bases) >= len(bases[0]):
            raise InputError(
                f"{len(bases)} mixed views need {len(bases)} other images in the batch, which has "
                f"{len(bases[0])}: take a batch of at least {len(bases) + 1}, or a smaller num_positives."
            )
        return [mix(x, lam, shift) for shift, x in enumerate(bases, start=1)]
    return [
        lam * x[halo:] + (1 - lam) * x[halo - shift : len(x) - shift]
        for shift, x in enumerate(bases, start=1)
    ]


def _check_lam(lam: float) -> None:
    if not (is_number(lam) and 0 <= lam <= 1):
        raise InputError(f"lam={lam!r} must be in [0, 1]: it is the share of the image itself.")
