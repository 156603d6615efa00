"""A labelled grid: one row an image, one titled column for the originals and for each of their views.

Shapes: R rows, C columns, 3 channels, H and W an image's rows and columns.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from intnacl.data.augmentations import AugmentConfig
from intnacl.data.draws import check_seed
from intnacl.data.views import make_views
from intnacl.errors import InputError, check_count
from intnacl.plots.fonts import families

FORMATS = (".png", ".jpg", ".pdf", ".svg")
CELL_INCHES = 1.1
MOST = 250  # rows, or views of a kind: matplotlib draws at most 2¹⁶ pixels along a side
GAP = 1 / 16  # between images, as a part of their side


def draw_gallery(columns: Mapping[str, Tensor], captions: Sequence[str], path: Path) -> None:
    """Draw title -> images (R,3,H,W), uint8 or float in [0,1], with a caption for each row, to `path`."""
    from matplotlib.figure import Figure

    if path.suffix.lower() not in FORMATS:
        raise InputError(f"out={str(path)!r} is no image: end its name in one of {', '.join(FORMATS)}.")
    stacked_CR = torch.stack([_uint8(images) for images in columns.values()])
    assert stacked_CR.shape[1] == len(captions), (stacked_CR.shape, len(captions))
    canvas, xs, ys = tile(stacked_CR)
    figure = Figure(figsize=(CELL_INCHES * len(xs), CELL_INCHES * len(ys)))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(canvas.permute(1, 2, 0).numpy(), interpolation="nearest")
    axes.set_xticks(xs, list(columns), fontsize=9)
    axes.set_yticks(ys, list(captions), fontsize=9, fontfamily=families(captions), parse_math=False)
    axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, bbox_inches="tight")  # makes room for the longest caption


def view_columns(
    images: Tensor, config: AugmentConfig, *, seed: int = 0, extra: int = 1, mixed: int = 2, lam: float = 0.5
) -> dict[str, Tensor]:
    """Title -> images: the originals (R,3,H,W) and what a training step would see of them."""
    check_seed("seed", seed)
    for name, count in (("rows", len(images)), ("extra", extra), ("mixed", mixed)):
        check_count(name, count, 0, MOST)
    rows = torch.arange(len(images))
    views = make_views(images, config, seed=seed, step=0, rows=rows, extra=extra, mixed=mixed, lam=lam)
    columns = {"original": images, "anchor": views.plain[0], "positive": views.plain[1]}
    columns |= {f"extra {j}": view for j, view in enumerate(views.extra, start=1)}
    return columns | {f"mixed {j}": view for j, view in enumerate(views.mixed, start=1)}


def tile(images: Tensor) -> tuple[Tensor, list[float], list[float]]:
    """Lay (C,R,3,H,W) out on white: the canvas (3, …, …), and the centres of its columns and rows."""
    columns, rows, _, height, width = images.shape
    gap = max(1, round(GAP * max(height, width)))
    padded = torch.nn.functional.pad(images, (0, gap, 0, gap), value=255)
    canvas = padded.permute(2, 1, 3, 0, 4).reshape(3, rows * (height + gap), columns * (width + gap))
    xs = [c * (width + gap) + (width - 1) / 2 for c in range(columns)]
    ys = [r * (height + gap) + (height - 1) / 2 for r in range(rows)]
    return canvas, xs, ys


def _uint8(images: Tensor) -> Tensor:
    images = images.detach().cpu()
    if images.dtype == torch.uint8:
        return images
    return (images.float().clamp(0, 1) * 255).round().to(torch.uint8)
