"""Batched image operations, each sample with its own parameters: differentiable, one graph, no host sync.

Every operation follows torchvision's on float images in [0, 1]. Geometric operations are products with one
matrix per sample and axis; colour operations work on the three planes separately, so that a compiler can keep
a sample's pixels in registers.

Shapes: B samples, C channels, H×W source and O×P output pixels, K kernel taps.
"""

from typing import NamedTuple

import torch
from torch import Tensor

GREY = (0.2989, 0.587, 0.114)


class Planes(NamedTuple):
    """Red, green and blue, each (B, H, W)."""

    red: Tensor
    green: Tensor
    blue: Tensor


def separable(images_BCHW: Tensor, rows_BOH: Tensor, columns_BPW: Tensor) -> Tensor:
    """Return Rows · X · Columnsᵀ for every sample and channel: (B, C, O, P).

    With the channels between the two axes, each product is one plain batched matrix product. The dtype of the
    images is kept under autocast, too: the rounding of weights to eight bits would be visible in the pixels.
    """
    B, C, H, W = images_BCHW.shape
    with torch.autocast(images_BCHW.device.type, enabled=False):
        tall_BOCW = torch.bmm(rows_BOH, images_BCHW.transpose(1, 2).reshape(B, H, C * W)).view(B, -1, C, W)
        wide_BOCP = torch.bmm(tall_BOCW.view(B, -1, W), columns_BPW.mT).view(B, tall_BOCW.shape[1], C, -1)
    return wide_BOCP.transpose(1, 2)


def resize_matrix(start_B: Tensor, length_B: Tensor, source: int, size: int) -> Tensor:
    """Return antialiased bilinear interpolation of source[start : start + length]: (B, size, source).

    Output pixel i looks at c = (i + ½)·s with s = length / size. Source pixel j of the window has the weight
    max(0, 1 − |j + ½ − c| / max(s, 1)), normalised over the window, so that no pixel outside leaks in.
    """
    scale_B11 = (length_B.to(torch.float32) / size)[:, None, None]
    centre_B1O1 = (torch.arange(size, device=start_B.device)[:, None] + 0.5) * scale_B11
    pixel_B1W = torch.arange(source, device=start_B.device) - start_B[:, None, None]
    inside_B1W = (pixel_B1W >= 0) & (pixel_B1W < length_B[:, None, None])
    weight_BOW = (1 - (pixel_B1W + 0.5 - centre_B1O1).abs() / scale_B11.clamp(min=1)).clamp(
        min=0
    ) * inside_B1W
    return weight_BOW / weight_BOW.sum(-1, keepdim=True)


def gaussian_matrix(sigma_B: Tensor, kernel: int, size: int) -> Tensor:
    """Return Gaussian blur with `kernel` taps and mirrored edges along an axis: (B, size, size)."""
    assert kernel % 2 == 1, kernel
    assert kernel // 2 < size, (kernel, size)
    tap_K = torch.arange(kernel, device=sigma_B.device) - kernel // 2
    weight_BK = torch.softmax(-0.5 * (tap_K / sigma_B[:, None]) ** 2, dim=1)
    pixel_S = torch.arange(size, device=sigma_B.device)
    # Reflection without repeating the edge: -1 -> 1 and size -> size - 2.
    target_SK = (size - 1) - ((size - 1) - (pixel_S[:, None] + tap_K).abs()).abs()
    hit_KSS = (target_SK.T[:, :, None] == pixel_S).to(weight_BK.dtype)
    with torch.autocast(sigma_B.device.type, enabled=False):
        return (weight_BK @ hit_KSS.flatten(1)).view(-1, size, size)


def grey(planes: Planes) -> Tensor:
    """Return the luma (B, H, W) by the ITU-R 601 weights."""
    return planes.red * GREY[0] + planes.green * GREY[1] + planes.blue * GREY[2]


def blend(planes: Planes, own_B: Tensor, grey_B: Tensor, mean_B: Tensor) -> Planes:
    """Return clamp(own·x + grey·luma(x) + mean·(mean over pixels of luma(x)), 0, 1), three operations in one.

    With factor f, brightness is (f, 0, 0), saturation (f, 1−f, 0) and contrast (f, 0, 1−f); (1, 0, 0) changes
    nothing.
    """
    luma_BHW = grey(planes)
    own_B11, grey_B11, mean_B11 = own_B[:, None, None], grey_B[:, None, None], mean_B[:, None, None]
    other_BHW = grey_B11 * luma_BHW + mean_B11 * luma_BHW.mean((1, 2), keepdim=True)
    return Planes(*((own_B11 * plane + other_BHW).clamp(0, 1) for plane in planes))


def rotate_hue(planes: Planes, turn_B: Tensor) -> Planes:
    """Turn the hue by `turn` (a fraction of the circle) in HSV.

    With value v = max, chroma c = max − min and h ∈ [0, 6) the hue, channel n ∈ {5, 3, 1} of the colour is
    v − c·clamp(min(k, 4 − k), 0, 1) where k = (n + h) mod 6: saturation itself is never needed.
    """
    red, green, blue = planes
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    inverse = 1 / torch.where(chroma > 0, chroma, 1)
    hue = torch.where(
        red == value,
        (green - blue) * inverse,
        torch.where(green == value, 2 + (blue - red) * inverse, 4 + (red - green) * inverse),
    )
    hue = hue + 6 * turn_B[:, None, None]
    return Planes(*(value - chroma * _sector(hue + n) for n in (5, 3, 1)))


def _sector(angle: Tensor) -> Tensor:
    """Return clamp(min(k, 4 − k), 0, 1), k = angle mod 6: the share of chroma that a channel lacks."""
    k = angle - 6 * torch.floor(angle / 6)
    return torch.minimum(k, 4 - k).clamp(0, 1)


def to_grey(planes: Planes, chosen_B: Tensor) -> Planes:
    """Replace the three planes of the chosen samples by their luma."""
    luma_BHW, chosen_B11 = grey(planes), chosen_B[:, None, None]
    return Planes(*(torch.where(chosen_B11, luma_BHW, plane) for plane in planes))


def solarise(planes: Planes, chosen_B: Tensor, threshold: float) -> Planes:
    """Invert every value at or above the threshold in the chosen samples."""
    chosen_B11 = chosen_B[:, None, None]
    return Planes(*(torch.where(chosen_B11 & (plane >= threshold), 1 - plane, plane) for plane in planes))


def join(planes: Planes, dtype: torch.dtype) -> Tensor:
    """Join three planes into images (B, 3, H, W) in [0, 1], channels_last."""
    return torch.stack([plane.clamp(0, 1).to(dtype) for plane in planes], dim=-1).permute(0, 3, 1, 2)
