"""Augmentation of a batch on its device: draw parameters, one set per sample, then apply them.

The operations, their order and the distribution of their parameters are those of torchvision's
RandomResizedCrop, RandomHorizontalFlip, ColorJitter (in random order), RandomGrayscale, GaussianBlur and
RandomSolarize. Draws are a function of (seed, step, view, row): see `draws`. The model normalises.

Shapes: B samples, C channels, H×W pixels, U uniform numbers per sample, T tries of a crop.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from intnacl.data import draws
from intnacl.data.augmentations import AugmentConfig
from intnacl.data.transforms import (
    Planes,
    blend,
    gaussian_matrix,
    join,
    resize_matrix,
    rotate_hue,
    separable,
    solarise,
    to_grey,
)
from intnacl.errors import InputError

TRIES = 10
BOX_UNIFORMS = 2 * TRIES + 2  # crop tries, crop corner
UNIFORMS = BOX_UNIFORMS + 1 + 9 + 1 + 2 + 1  # flip, jitter, grey, blur, solarise
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


class Params(NamedTuple):
    """The parameters of a batch, one row per sample."""

    top: Tensor  # (B,) int64: the crop box, in pixels of the padded source
    left: Tensor
    height: Tensor
    width: Tensor
    flip: Tensor  # (B,) bool
    factors: Tensor  # (B, 4): brightness, contrast, saturation (1 = unchanged) and hue (0 = unchanged)
    stage: Tensor  # (B, 4) int64: the place, from 0 to 3, of each of the four in their order; a permutation
    grayscale: Tensor  # (B,) bool
    sigma: Tensor  # (B,): of the blur
    blur: Tensor  # (B,) bool
    solarize: Tensor  # (B,) bool


def draw(config: AugmentConfig, uniform_BU: Tensor, height: int, width: int) -> Params:
    """Draw parameters from `UNIFORMS` uniform numbers per sample, for images of height × width.

    Each parameter has its own columns in every augmentation, so that switching one operation off leaves the
    others unchanged.
    """
    assert uniform_BU.shape[1] == UNIFORMS, uniform_BU.shape
    box_BK, flip_B1, jitter_B9, rest_B4 = torch.split(uniform_BU, [BOX_UNIFORMS, 1, 9, 4], dim=1)
    box = crop_box(config, box_BK, height, width)
    jitter_B, factor_B4, key_B4 = jitter_B9[:, 0], jitter_B9[:, 1:5], jitter_B9[:, 5:]
    grey_B, blur_B, sigma_B, solarize_B = rest_B4.unbind(1)
    return Params(
        *box,
        flip=flip_B1[:, 0] < config.flip_p,
        factors=_jitter_factors(config, factor_B4, jitter_B < config.jitter_p),
        stage=_ranks(key_B4),
        grayscale=grey_B < config.grayscale_p,
        sigma=_between(sigma_B, *config.blur_sigma),
        blur=blur_B < config.blur_p,
        solarize=solarize_B < config.solarize_p,
    )


def apply(
    images_BCHW: Tensor,
    params: Params,
    config: AugmentConfig,
    size: tuple[int, int] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Transform images (uint8, or float in [0, 1]) by `params`: (B, 3, *size) in [0, 1], channels_last.

    `size` defaults to the source's. Pixels are computed in float32 and rounded once, at the end, to `dtype`.
    """
    known = images_BCHW.dtype == torch.uint8 or images_BCHW.is_floating_point()
    if not known or images_BCHW.ndim != 4 or images_BCHW.shape[1] != 3:
        raise InputError(
            f"images are {images_BCHW.dtype} of shape {tuple(images_BCHW.shape)}: expected (batch, 3, "
            "height, width), uint8 or floats in [0, 1]; grey ones are images.expand(-1, 3, -1, -1)."
        )
    unit_BCHW = images_BCHW.to(torch.float32)
    if images_BCHW.dtype == torch.uint8:
        unit_BCHW = unit_BCHW / 255
    H, W = images_BCHW.shape[2:]
    planes = Planes(*_crop_flip(unit_BCHW, params, config, size or (H, W)).unbind(1))
    if config.jitters:
        planes = _jitter(planes, params)
    if config.grayscale_p > 0:
        planes = to_grey(planes, params.grayscale)
    if config.blur_p > 0:
        planes = _blur(planes, params, config.blur_kernel)
    if config.solarize_p > 0:
        planes = solarise(planes, params.solarize, config.solarize_threshold)
    return join(planes, dtype)


def augment(
    images_BCHW: Tensor,
    config: AugmentConfig,
    *,
    seed: int | Tensor,
    step: int | Tensor,
    view: int | Tensor,
    rows: Tensor,
    size: tuple[int, int] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return one view of each image, a function of (seed, step, view, row): `draw`, then `apply`.

    `rows` (B,) are the images' places in the global batch; `seed`, `step` and `view` may be tensors on the
    device, so that a captured CUDA graph draws new numbers at every replay.
    """
    uniform_BU = draws.uniform(seed, step, view, rows, UNIFORMS)
    params = draw(config, uniform_BU, images_BCHW.shape[-2], images_BCHW.shape[-1])
    return apply(images_BCHW, params, config, size, dtype)


def view_of_step(config: AugmentConfig, seed: int, images: Tensor, step: int) -> Tensor:
    """Return the augmented view of a step's images, uint8 (B, 3, H, W), when one process has all of them."""
    rows = torch.arange(len(images), device=images.device)
    clock = torch.tensor(step, device=images.device)
    return augment(images, config, seed=seed, step=clock, view=0, rows=rows)


def _between(uniform: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * uniform


def crop_box(
    config: AugmentConfig, uniform_BK: Tensor, height: int | Tensor, width: int | Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return top, left, height and width, (B,) int64 each, of the first try that fits, or the fallback.

    `uniform_BK` are the first `BOX_UNIFORMS` of each sample's uniform numbers. `height` and `width` are
    numbers if all images have one size, else (B,) int64.
    """
    uniform_BT2, corner_B2 = uniform_BK[:, : 2 * TRIES].reshape(-1, TRIES, 2), uniform_BK[:, 2 * TRIES :]
    fallback_height, fallback_width = _fallback(config, height, width)
    if config.crop_scale is None:
        crop_height_B, crop_width_B = (
            torch.zeros_like(uniform_BK[:, 0], dtype=torch.int64) + side
            for side in (fallback_height, fallback_width)
        )
        # There are 2·padding + 1 places along each axis.
        top_B, left_B = (corner_B2 * (2 * config.crop_padding + 1)).to(torch.int64).unbind(1)
        return top_B, left_B, crop_height_B, crop_width_B
    image_height, image_width = (
        side[:, None] if isinstance(side, Tensor) else side for side in (height, width)
    )
    area_BT = image_height * image_width * _between(uniform_BT2[..., 0], *config.crop_scale)
    ratio_BT = torch.exp(_between(uniform_BT2[..., 1], *(math.log(value) for value in config.crop_ratio)))
    crop_width_BT = torch.round(torch.sqrt(area_BT * ratio_BT)).to(torch.int64)
    crop_height_BT = torch.round(torch.sqrt(area_BT / ratio_BT)).to(torch.int64)
    fits_BT = (
        (crop_width_BT > 0)
        & (crop_width_BT <= image_width)
        & (crop_height_BT > 0)
        & (crop_height_BT <= image_height)
    )
    # The earlier a try that fits, the higher its score: the maximum is the first one; 0: none fits.
    score_BT = fits_BT * torch.arange(TRIES, 0, -1, device=fits_BT.device)
    best_B1 = score_BT.amax(1, keepdim=True)
    found_B, first_BT = best_B1[:, 0] > 0, score_BT == best_B1
    crop_height_B = torch.where(found_B, (crop_height_BT * first_BT).sum(1), fallback_height)
    crop_width_B = torch.where(found_B, (crop_width_BT * first_BT).sum(1), fallback_width)
    free_B2 = torch.stack((height - crop_height_B, width - crop_width_B), dim=1)
    corner_B2 = torch.where(found_B[:, None], (corner_B2 * (free_B2 + 1)).to(torch.int64), free_B2 // 2)
    return corner_B2[:, 0], corner_B2[:, 1], crop_height_B, crop_width_B


def _fallback(
    config: AugmentConfig, height: int | Tensor, width: int | Tensor
) -> tuple[int | Tensor, int | Tensor]:
    """Return height and width of the largest box with an allowed ratio, or of the image if not cropped."""
    if config.crop_scale is None:
        return height, width
    low, high = config.crop_ratio
    if isinstance(height, Tensor) and isinstance(width, Tensor):
        crop_height_B = torch.round(width.double() / low).to(torch.int64).clamp(min=1)
        crop_width_B = torch.round(height.double() * high).to(torch.int64).clamp(min=1)
        too_tall_B, too_wide_B = width < low * height.double(), width > high * height.double()
        return torch.where(too_tall_B, crop_height_B, height), torch.where(too_wide_B, crop_width_B, width)
    assert isinstance(height, int)
    assert isinstance(width, int)
    if width < low * height:
        return max(1, round(width / low)), width
    if width > high * height:
        return height, max(1, round(height * high))
    return height, width


def _jitter_factors(config: AugmentConfig, uniform_B4: Tensor, chosen_B: Tensor) -> Tensor:
    """Draw uniformly from [max(0, 1 − b), 1 + b] for brightness, contrast, saturation, [−h, h] for hue."""
    *blends, hue = config.factors
    columns = [_between(uniform_B4[:, i], max(0.0, 1 - b), 1 + b) for i, b in enumerate(blends)]
    blends_B3 = torch.stack(columns, dim=1)
    hue_B1 = _between(uniform_B4[:, HUE:], -hue, hue)
    chosen_B1 = chosen_B[:, None]
    return torch.cat((torch.where(chosen_B1, blends_B3, 1.0), torch.where(chosen_B1, hue_B1, 0.0)), dim=1)


def _ranks(key_BK: Tensor) -> Tensor:
    """Return the rank of each key in its row, equal keys in the order of columns: a permutation (B, K)."""
    column_K = torch.arange(key_BK.shape[1], device=key_BK.device)
    other_B1K, own_BK1 = key_BK[:, None, :], key_BK[:, :, None]
    before_BKK = (other_B1K < own_BK1) | ((other_B1K == own_BK1) & (column_K < column_K[:, None]))
    return before_BKK.sum(2)


def _crop_flip(images_BCHW: Tensor, params: Params, config: AugmentConfig, size: tuple[int, int]) -> Tensor:
    """Crop, resize and mirror, by one matrix per sample for the rows and one for the columns."""
    if config.crop_padding:
        images_BCHW = functional.pad(images_BCHW, [config.crop_padding] * 4)
    H, W = images_BCHW.shape[2:]
    flip_B11 = params.flip[:, None, None]
    if config.crop_scale is None and size == (H, W):
        return (
            torch.where(flip_B11[..., None], images_BCHW.flip(3), images_BCHW)
            if config.flip_p > 0
            else images_BCHW
        )
    rows_BOH = resize_matrix(params.top, params.height, H, size[0])
    columns_BPW = resize_matrix(params.left, params.width, W, size[1])
    if config.flip_p > 0:
        columns_BPW = torch.where(flip_B11, columns_BPW.flip(1), columns_BPW)
    return separable(images_BCHW, rows_BOH, columns_BPW)


def _jitter(planes: Planes, params: Params) -> Planes:
    """Apply the four colour operations in each sample's own order.

    Hue rotation is expensive, and each of the three others is one cheap blend. So the hue of all samples is
    rotated once, between three blends before it and three after; a blend that a sample does not need at its
    place is the identity.
    """
    hue_B = params.stage[:, HUE]
    for stage in (0, 1, 2):
        planes = _blend_at(planes, params, stage, hue_B > stage)
    planes = rotate_hue(planes, params.factors[:, HUE])
    for stage in (1, 2, 3):
        planes = _blend_at(planes, params, stage, hue_B < stage)
    return planes


def _blend_at(planes: Planes, params: Params, stage: int, active_B: Tensor) -> Planes:
    """Apply brightness, contrast or saturation, whichever each active sample has at this stage."""
    chosen_B4 = (params.stage == stage) & active_B[:, None]
    excess_B4 = torch.where(chosen_B4, params.factors - 1, 0.0)
    own_B = 1 + excess_B4[:, :HUE].sum(1)
    return blend(planes, own_B, -excess_B4[:, SATURATION], -excess_B4[:, CONTRAST])


def _blur(planes: Planes, params: Params, kernel: int) -> Planes:
    """Blur the chosen samples; for the others the blur is too narrow to reach the next pixel."""
    H, W = planes.red.shape[1:]
    if kernel // 2 >= min(H, W):
        raise InputError(
            f"blur_kernel={kernel} is too wide for images of {H}x{W}: at most {2 * min(H, W) - 1}."
        )
    sigma_B = torch.where(params.blur, params.sigma, 1e-3)
    rows_BHH, columns_BWW = gaussian_matrix(sigma_B, kernel, H), gaussian_matrix(sigma_B, kernel, W)
    return Planes(*separable(torch.stack(planes, dim=1), rows_BHH, columns_BWW).unbind(1))
