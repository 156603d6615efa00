"""Grids of images: training views, adversarial views, attacked images, nearest neighbours.

Shapes: R rows, C columns, 3 channels, H and W an image's rows and columns; N images, F features.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from intnacl.attacks.training_view import adversarial_view
from intnacl.data.augmentations import AugmentConfig
from intnacl.data.dataset import Dataset
from intnacl.data.draws import check_seed
from intnacl.data.views import make_views
from intnacl.errors import InputError, check_count
from intnacl.evaluation.projection import nearest_to
from intnacl.models.batchnorm import stacked
from intnacl.plots.style import RIGHT, WRONG, font_families, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELL_INCHES = 1.1
MOST = 250  # rows, or views of a kind: matplotlib draws at most 2¹⁶ pixels along a side
GAP = 1 / 16  # between images, as a share of their side
UNTOUCHED = "not attacked:\nalready wrong"  # written over the perturbation of such an image
SHOWN, NEIGHBOURS = 8, 6  # rows of the picture of neighbours, and neighbours in each row


def draw_gallery(columns: Mapping[str, Tensor], captions: Sequence[str]) -> "Figure":
    """Draw a labelled grid: a titled column for each entry, a captioned row for each image.

    Args:
        columns: Title -> images (R, 3, H, W), uint8 or float in [0, 1].
        captions: One for each row.
    """
    from matplotlib.figure import Figure

    stacked_CR = torch.stack([_uint8(images) for images in columns.values()])
    assert stacked_CR.shape[1] == len(captions), (stacked_CR.shape, len(captions))
    canvas, xs, ys = tile(stacked_CR)
    figure = Figure(figsize=(CELL_INCHES * len(xs), CELL_INCHES * len(ys)))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(canvas.permute(1, 2, 0).numpy(), interpolation="nearest")
    axes.set_xticks(xs, list(columns), fontsize=9)
    axes.set_yticks(ys, list(captions), fontsize=9, fontfamily=font_families(captions), parse_math=False)
    axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    return figure


def save_gallery(figure: "Figure", path: Path) -> None:
    """Save a grid with room for its longest caption."""
    save_figure(figure, path, dpi=150, bbox_inches="tight")


def tile(images: Tensor) -> tuple[Tensor, list[float], list[float]]:
    """Lay images (C,R,3,H,W) out on a white canvas (3, …, …); also return its columns' and rows' centres."""
    columns, rows, _, height, width = images.shape
    gap = max(1, round(GAP * max(height, width)))
    padded = functional.pad(images, (0, gap, 0, gap), value=255)
    canvas = padded.permute(2, 1, 3, 0, 4).reshape(3, rows * (height + gap), columns * (width + gap))
    xs = [c * (width + gap) + (width - 1) / 2 for c in range(columns)]
    ys = [r * (height + gap) + (height - 1) / 2 for r in range(rows)]
    return canvas, xs, ys


def _uint8(images: Tensor) -> Tensor:
    images = images.detach().cpu()
    if images.dtype == torch.uint8:
        return images
    return (images.float().clamp(0, 1) * 255).round().to(torch.uint8)


def view_columns(
    images: Tensor, config: AugmentConfig, *, seed: int = 0, extra: int = 1, mixed: int = 2, lam: float = 0.5
) -> dict[str, Tensor]:
    """Return title -> images: the originals (R, 3, H, W) and what a training step would see of them."""
    check_seed("seed", seed)
    for name, count in (("rows", len(images)), ("extra", extra), ("mixed", mixed)):
        check_count(name, count, 0, MOST)
    rows = torch.arange(len(images))
    views = make_views(images, config, seed=seed, step=0, rows=rows, extra=extra, mixed=mixed, lam=lam)
    columns = {"original": images, "anchor": views.plain[0], "positive": views.plain[1]}
    columns |= {f"extra {j}": view for j, view in enumerate(views.extra, start=1)}
    return columns | {f"mixed {j}": view for j, view in enumerate(views.mixed, start=1)}


def adversarial_columns(network: nn.Module, anchors: Tensor, eps: float) -> dict[str, Tensor]:
    """Return title -> images: the adversarial views of anchors (R, 3, H, W), and the changes around grey."""
    if len(anchors) < 2:
        raise InputError(
            "one image has no adversarial view, because the other images are its negatives: take 2 or more, "
            "or eps=0 for no adversarial views."
        )
    with stacked(network, [(1, True)]):
        views = adversarial_view(network, anchors, eps)
    gain = 0.5 / eps
    return {"adversarial": views, f"change × {gain:.0f}": 0.5 + gain * (views - anchors)}


def draw_neighbours(features: Iterable[Tensor], images: Dataset) -> "Figure":
    """Draw some images, each beside its nearest neighbours by the cosine of their features.

    The features come in pieces (n, F).
    """
    rows_R = images.spread(SHOWN)
    near_RK = nearest_to(rows_R, features, NEIGHBOURS)
    columns = {"image": images.images[rows_R]}
    columns |= {f"nearest {k}": images.images[near_R] for k, near_R in enumerate(near_RK.T, start=1)}
    return draw_gallery(columns, images.captions(rows_R))


def draw_examples(
    found: Mapping[str, Tensor], classes: Sequence[str], *, title: str = "", shown: slice = slice(None)
) -> "Figure":
    """Draw rows of clean images, perturbations and attacked images, the prediction above each image.

    Perturbations are shown as ½ + δ/(2·max|δ|): grey is no change. PGD leaves an image alone that is already
    misclassified, and the picture says so. Right predictions are green, wrong ones red and starred.

    Args:
        found: The result of `robustness.examples`.
        classes: Names of the classes.
        title: Title of the whole figure.
        shown: The images to draw; perturbations keep the scale that they have among all images.
    """
    from matplotlib.figure import Figure

    delta = found["adversarial"] - found["clean"]
    strength = float(delta.abs().max())
    amplified = f"perturbation\n× {0.5 / strength:.0f}" if strength else "no perturbation"
    rows = {
        "clean": (found["clean"], found["predicted"]),
        amplified: (0.5 + delta / (2 * strength or 1.0), None),
        "attacked": (found["adversarial"], found["predicted_adversarial"]),
    }
    places = range(len(delta))[shown]
    figure = Figure(figsize=(1.2 * len(places) + 0.6, 4.6), layout="constrained")
    grid = figure.subplots(3, len(places), squeeze=False)
    for axes_row, (name, (images, predicted)) in zip(grid, rows.items(), strict=True):
        axes_row[0].set_ylabel(name)
        for i, axes in zip(places, axes_row, strict=True):
            axes.imshow(images[i].clamp(0, 1).permute(1, 2, 0).numpy(), interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            if predicted is not None:
                right = bool(predicted[i] == found["labels"][i])
                label = classes[int(predicted[i])]
                font = {"fontsize": 9, "fontfamily": font_families([label])}
                color = RIGHT if right else WRONG
                axes.set_title(label if right else f"{label}*", color=color, parse_math=False, **font)
            elif found["predicted"][i] != found["labels"][i] and not delta[i].any():
                inside = {"transform": axes.transAxes, "ha": "center", "va": "center", "color": "black"}
                axes.text(0.5, 0.5, UNTOUCHED, fontsize=9, **inside)
    if title:
        figure.suptitle(title)
    return figure
