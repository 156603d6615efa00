"""Images laid out by their features, on one self-contained page with pan, zoom and nearest neighbours.

Shapes: N images, F features, K neighbours, S the side of a picture in the atlas.
"""

import base64
import io
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor
from torch.nn import functional

from intnacl.data import Dataset
from intnacl.data.streamed import part_of, portions
from intnacl.errors import check_count, printable
from intnacl.evaluation.features import select_rows
from intnacl.evaluation.projection import nearest_neighbours, neighbours_kept, project
from intnacl.files import write_text
from intnacl.plots.style import COLORS
from intnacl.runs.card import public_name
from intnacl.runs.config import loss_name
from intnacl.runs.measure import fitted_classifier
from intnacl.runs.opened import Run
from intnacl.runs.page import template_environment

MOST = 10_000  # images on a page: more take minutes to lay out and more than 30 MB
NEIGHBOURS = 12
ATLAS_SIDE = 4096  # pixels: every browser accepts an image of this side
LOSSLESS = 2**20  # pixels of an atlas up to which PNG is small enough
QUALITY = 90  # of JPEG without chroma subsampling: 36 dB on CIFAR-10, at a fourth of PNG's size
PORTION = 512  # images decoded and resized at a time


class Labels(TypedDict):
    """A class for each image: the names of the classes, and each image's index into them."""

    title: str
    names: list[str]
    of: str
    """16 bits an image, in base64."""


def check_most(most: int) -> None:
    """Raise unless a page can hold this many images, which are numbered with 16 bits."""
    check_count("images", most, 1, 2**16)


def write_explorer(
    run: Run, images: Dataset, features: Iterable[Tensor], out: Path, *, most: int = MOST
) -> None:
    """Write the page of images and their features, which come in pieces (n, F).

    Of more than `most` images, an evenly spaced choice of `most` is shown, and neighbours are found within
    it.
    """
    check_most(most)
    chosen_N = images.spread(most)
    write_text(out, render_explorer(run, images, select_rows(features, chosen_N), chosen_N))


def render_explorer(run: Run, images: Dataset, features_NF: Tensor, chosen_N: Tensor) -> str:
    """Return the page of the chosen images with their features."""
    n = len(features_NF)
    plane_N2, near, kept = project(features_NF), None, None
    if n > 1:
        near = nearest_neighbours(features_NF, NEIGHBOURS)
        kept = neighbours_kept(near.index_NK, plane_N2)
    # Both directions are scaled alike, so that the longer one fills the range of 16 bits.
    low_2 = plane_N2.min(dim=0).values
    extent = float((plane_N2.max(dim=0).values - low_2).max()) or 1.0
    places_N2 = (plane_N2 - low_2) / extent
    places_N2 += (1 - places_N2.max(dim=0).values) / 2
    atlas, side, columns = _atlas(images, chosen_N)
    data: dict[str, Any] = {
        "count": n,
        "atlas": atlas,
        "side": side,
        "columns": columns,
        "places": _packed(places_N2 * 65535),
        "neighbours": near.index_NK.shape[1] if near else 0,
        "near": _packed(near.index_NK) if near else "",
        "cosines": _packed(near.cosine_NK.clamp(0, 1) * 65535) if near else "",
        "names": [printable(images.names[i]) for i in chosen_N.tolist()] if images.names else None,
        "numbers": chosen_N.tolist() if n < len(images) else None,
        "label": None,
        "prediction": _prediction(run, images, features_NF),
    }
    if images.labels is not None:
        data["label"] = _labels("class", images.classes, images.labels[chosen_N])
    facts = [f"{n:,} of {len(images):,} images" if n < len(images) else f"{n:,} images"]
    facts += [f"{images.split} split", f"{loss_name(run.config)}, {run.config.encoder.name}"]
    return template_environment("intnacl.runs").get_template("explorer.html").render(
        title=public_name(images.name),
        facts=printable(", ".join(facts)),
        kept=None if kept is None else f"{100 * kept:.0f}",
        neighbours=near.index_NK.shape[1] if near else 0,
        data=data,
        palette=COLORS,
    )  # fmt: skip


def _prediction(run: Run, images: Dataset, features_NF: Tensor) -> Labels | None:
    """Return the predictions of the run's classifier for the images' data set, else for the run's own one.

    Return None if neither has been fitted yet.
    """
    for dataset in dict.fromkeys((images.name, run.config.dataset)):
        found = fitted_classifier(run, dataset)
        if found is not None:
            classifier, names = found
            with torch.inference_mode():
                predicted_N = classifier.classify(features_NF.to(run.device)).argmax(dim=1)
            return _labels("prediction", names, predicted_N)
    return None


def _labels(title: str, names: tuple[str, ...], of_N: Tensor) -> Labels:
    return {"title": title, "names": [printable(name) for name in names], "of": _packed(of_N)}


def _packed(values: Tensor) -> str:
    """Return numbers from 0 to 2¹⁶ − 1, rounded to 16 bits each, in base64."""
    whole = values.detach().cpu().round().to(torch.int32).numpy().astype("<u2")
    return base64.b64encode(whole.tobytes()).decode()


def _atlas(images: Dataset, chosen_N: Tensor) -> tuple[str, int, int]:
    """Return one image of all pictures as a data URL, the side of a picture, and the number of columns.

    Pictures are shrunk if the atlas would be too large. In a JPEG their side is a multiple of 8, the block
    size, so that pictures do not bleed into each other.
    """
    from PIL import Image

    n = len(chosen_N)
    columns = math.ceil(math.sqrt(n))
    side = min(max(images.images.shape[2:]), ATLAS_SIDE // columns)
    lossless = columns**2 * side**2 <= LOSSLESS
    if not lossless:
        side = max(8, side // 8 * 8)
    rows = math.ceil(n / columns)
    sprites = torch.full((rows * columns, 3, side, side), 255, dtype=torch.uint8)
    first = 0
    for portion in portions(part_of(images.images, chosen_N), math.ceil(n / PORTION)):
        if portion.shape[2:] != (side, side):
            small = functional.interpolate(
                portion.float(), size=(side, side), mode="bilinear", antialias=True
            )
            portion = small.round().clamp(0, 255).to(torch.uint8)
        sprites[first : first + len(portion)] = portion
        first += len(portion)
    pixels = (
        sprites.reshape(rows, columns, 3, side, side)
        .permute(0, 3, 1, 4, 2)
        .reshape(rows * side, columns * side, 3)
    )
    buffer = io.BytesIO()
    picture = Image.fromarray(pixels.numpy())
    if lossless:
        picture.save(buffer, "PNG", optimize=True)
    else:
        picture.save(buffer, "JPEG", quality=QUALITY, subsampling=0)
    kind = "png" if lossless else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}", side, columns
