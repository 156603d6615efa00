"""The 15 common corruptions of CIFAR-10-C (Hendrycks & Dietterich 2019), each at five severities.

Formulas and parameters are those that CIFAR-10-C was made with, for 32×32 pixels. Everything random about an
image depends on a seed and the image's place alone: numbers come from NumPy's `RandomState`, whose streams
never change, in the order in which the original draws them.

Shapes: N images, S×S pixels; arrays are (N, S, S, 3), float64, from 0 to 255 where not said otherwise.
"""

import hashlib
import io
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from intnacl.errors import InputError, check_choice, check_count, missing_extra

Array = npt.NDArray[np.float64]
Draws = Sequence[np.random.RandomState]
"""A generator for each image."""


class Corruption(NamedTuple):
    """A corruption: a function of images, its parameters and each image's generator; its five severities."""

    apply: Callable[[Array, Any, Draws], Array]
    severities: tuple[Any, ...]


def corrupt(
    images: Tensor, name: str, severity: int, *, seed: int = 0, places: Sequence[int] | None = None
) -> Tensor:
    """Return corrupted images: uint8 (N, 3, S, S) -> the same.

    Args:
        images: uint8 (N, 3, S, S).
        name: one of `CORRUPTIONS`.
        severity: 1 to 5.
        seed: seed of everything random.
        places: (N,), numbers that key the images' random draws; 0 … N − 1 by default.
    """
    check_choice("corruption", name, CORRUPTIONS)
    check_count("severity", severity, high=5)
    places = range(len(images)) if places is None else places
    pixels = images.permute(0, 2, 3, 1).cpu().numpy().astype(np.float64)
    draws = [_generator(seed, name, severity, place) for place in places]
    corruption = CORRUPTIONS[name]
    found = corruption.apply(pixels, corruption.severities[severity - 1], draws)
    # As in the original, the conversion to uint8 truncates.
    return torch.from_numpy(np.clip(found, 0, 255).astype(np.uint8)).permute(0, 3, 1, 2).contiguous()


def _generator(seed: int, name: str, severity: int, place: int) -> np.random.RandomState:
    key = f"{seed} {name} {severity} {place}".encode()
    return np.random.RandomState(int.from_bytes(hashlib.blake2b(key, digest_size=4).digest(), "little"))


# ---- noise -------------------------------------------------------------------------------------------------


def _gaussian_noise(x: Array, deviation: float, draws: Draws) -> Array:
    noise = np.stack([draw.normal(size=x.shape[1:], scale=deviation) for draw in draws])
    return np.clip(x / 255 + noise, 0, 1) * 255


def _shot_noise(x: Array, photons: float, draws: Draws) -> Array:
    counts = np.stack([draw.poisson(one / 255 * photons) for draw, one in zip(draws, x, strict=True)])
    return np.clip(counts / photons, 0, 1) * 255


def _impulse_noise(x: Array, share: float, draws: Draws) -> Array:
    uniform = np.stack([draw.random_sample((2, *x.shape[1:])) for draw in draws])
    return np.where(uniform[:, 0] < share, np.where(uniform[:, 1] < 0.5, 255.0, 0.0), x)


# ---- blur --------------------------------------------------------------------------------------------------


def _defocus_blur(x: Array, parameters: tuple[float, float], draws: Draws) -> Array:
    """Convolve with a disk that is itself blurred over three pixels."""
    from scipy.ndimage import correlate

    radius, deviation = parameters
    reach = np.arange(-8, 9)
    disk = (reach[:, None] ** 2 + reach**2 <= radius**2).astype(np.float64)
    taps = np.exp(-(np.arange(-1, 2) ** 2) / (2 * deviation**2))
    taps /= taps.sum()
    kernel = correlate(disk / disk.sum(), np.outer(taps, taps), mode="mirror")
    middle = slice(8 - int(radius) - 1, 8 + int(radius) + 2)  # beyond, it is 0
    return np.asarray(correlate(x, kernel[None, middle, middle, None], mode="mirror"))


def _glass_blur(x: Array, parameters: tuple[float, int, int], draws: Draws) -> Array:
    """Blur, replace each pixel by a nearby one, blur again. The original intends a swap, but copies."""
    deviation, distance, rounds = parameters
    x = np.floor(_gaussian(x, deviation))
    side, every = x.shape[1], np.arange(len(x))
    inside = range(side - distance, distance, -1)
    moves = np.stack(
        [draw.randint(-distance, distance, (rounds, len(inside), len(inside), 2)) for draw in draws]
    )
    for turn in range(rounds):
        for i, row in enumerate(inside):
            for j, column in enumerate(inside):
                right, down = moves[:, turn, i, j].T
                x[:, row, column] = x[every, row + down, column + right]
    return _gaussian(x, deviation)


def _gaussian(x: Array, deviation: float) -> Array:
    from scipy.ndimage import gaussian_filter

    return np.asarray(gaussian_filter(x, (0, deviation, deviation, 0), mode="nearest", truncate=4.0))


def _motion_blur(x: Array, parameters: tuple[int, float], draws: Draws) -> Array:
    return _blur_along(x, *parameters, np.array([draw.uniform(-45, 45) for draw in draws]))


def _blur_along(x: Array, radius: int, deviation: float, degrees: Array) -> Array:
    """Average along a ray at an angle, with the weights of a Gaussian: ImageMagick's motion blur.

    Pixels outside the image repeat its edge, and the result is rounded.
    """
    taps = np.arange(2 * radius + 1)
    weights = np.exp(-(taps**2) / (2 * deviation**2))
    weights /= weights.sum()
    side, every = x.shape[1], np.arange(len(x))[:, None, None]
    place, found = np.arange(side), np.zeros_like(x)
    for tap, weight in zip(taps, weights, strict=True):
        down = np.ceil(tap * np.sin(np.deg2rad(degrees)) - 0.5).astype(int)
        right = np.ceil(tap * np.cos(np.deg2rad(degrees)) - 0.5).astype(int)
        rows = np.clip(place + down[:, None], 0, side - 1)
        columns = np.clip(place + right[:, None], 0, side - 1)
        found += weight * x[every, rows[:, :, None], columns[:, None, :]]
    return np.floor(found + 0.5)


def _zoom_blur(x: Array, largest: float, draws: Draws) -> Array:
    """Average the image with its enlargements by 1, 1.01, 1.02 … below the largest."""
    factors = np.arange(1, largest, 0.01)
    total = x.copy()
    for factor in factors:
        total += _zoom(x, factor)
    return total / (len(factors) + 1)


def _zoom(x: Array, factor: float) -> Array:
    """Enlarge the middle of images by linear interpolation."""
    from scipy.ndimage import zoom

    side = x.shape[1]
    crop = int(np.ceil(side / factor))
    top = (side - crop) // 2
    weights = zoom(np.eye(crop), (factor, 1), order=1)  # of the crop's pixels, for each row of the result
    first = (len(weights) - side) // 2
    weights = weights[first : first + side]
    middle = x[:, top : top + crop, top : top + crop]
    return np.asarray(np.einsum("rh,nhwc,sw->nrsc", weights, middle, weights, optimize=True))


# ---- weather -----------------------------------------------------------------------------------------------


def _snow(x: Array, parameters: tuple[float, float, float, float, int, float, float], draws: Draws) -> Array:
    """Whiten the image and add motion-blurred flakes twice, the second time turned by 180°."""
    mean, deviation, factor, least, radius, width, share = parameters
    size = x.shape[1:3]
    flakes = np.stack([draw.normal(size=size, loc=mean, scale=deviation) for draw in draws])[..., None]
    degrees = np.array([draw.uniform(-135, -45) for draw in draws])
    flakes = _zoom(flakes, factor)
    flakes[flakes < least] = 0
    flakes = _blur_along(np.floor(np.clip(flakes, 0, 1) * 255), radius, width, degrees) / 255
    x = x / 255
    grey = x @ np.array([0.299, 0.587, 0.114])
    x = share * x + (1 - share) * np.maximum(x, grey[..., None] * 1.5 + 0.5)
    return np.clip(x + flakes + flakes[:, ::-1, ::-1], 0, 1) * 255


def _frost(x: Array, parameters: tuple[float, float], draws: Draws) -> Array:
    """Add a random piece of a photograph of frost."""
    of_image, of_frost = parameters
    side, photographs = x.shape[1], frost_photographs()
    pieces = []
    for draw in draws:
        photograph = photographs[draw.randint(5)]
        top, left = (draw.randint(0, extent - side) for extent in photograph.shape[:2])
        pieces.append(photograph[top : top + side, left : left + side])
    return np.clip(of_image * x + of_frost * np.stack(pieces), 0, 255)


def frost_photographs() -> list[Array]:
    """Return the first five photographs of the package imagecorruptions, every fifth pixel of them.

    They are not part of this package, whose license does not cover them; without them there is no frost.
    """
    from PIL import Image

    found = find_spec("imagecorruptions")  # its code, which needs older packages, is not run
    if found is None or found.origin is None:
        raise missing_extra("imagecorruptions", "corruptions", "the photographs of the corruption frost")
    paths = [
        Path(found.origin).parent / "frost" / f"frost{n}{'.png' if n < 4 else '.jpg'}" for n in range(1, 6)
    ]
    photographs = []
    for path in paths:
        try:
            with Image.open(path) as opened:
                photographs.append(np.asarray(opened.convert("RGB"), dtype=np.float64)[2::5, 2::5])
        except OSError as error:
            raise InputError(f"{path}: {error}: install imagecorruptions again.") from error
    return photographs


def _fog(x: Array, parameters: tuple[float, float], draws: Draws) -> Array:
    amount, decay = parameters
    x, side = x / 255, x.shape[1]
    brightest = x.max((1, 2, 3), keepdims=True)
    x = x + amount * plasma(side, decay, draws)[..., None]
    return np.asarray(np.clip(x * brightest / (brightest + amount), 0, 1) * 255)


def plasma(side: int, decay: float, draws: Draws) -> Array:
    """Return a height map for each image by the diamond-square algorithm, from 0 to 1: (N, side, side)."""
    whole = 1 << (side - 1).bit_length()
    heights, step, wobble = np.zeros((len(draws), whole, whole)), whole, 100.0

    def around(total: Array) -> Array:
        uniform = np.stack([draw.uniform(-wobble, wobble, total.shape[1:]) for draw in draws])
        return total / 4 + wobble * uniform

    while step >= 2:
        half = step // 2
        corners = heights[:, ::step, ::step]
        total = corners + np.roll(corners, -1, 1)
        heights[:, half::step, half::step] = around(total + np.roll(total, -1, 2))
        centres = heights[:, half::step, half::step]
        above = centres + np.roll(centres, 1, 1) + corners + np.roll(corners, -1, 2)
        heights[:, ::step, half::step] = around(above)
        beside = centres + np.roll(centres, 1, 2) + corners + np.roll(corners, -1, 1)
        heights[:, half::step, ::step] = around(beside)
        step, wobble = half, wobble / decay
    heights -= heights.min((1, 2), keepdims=True)
    return np.asarray(heights / heights.max((1, 2), keepdims=True))[:, :side, :side]


# ---- light, shape and storage ------------------------------------------------------------------------------


def _brightness(x: Array, more: float, draws: Draws) -> Array:
    """Raise the value of HSV, which is the largest of the three colours."""
    value = x.max(3, keepdims=True) / 255
    brighter = np.clip(value + more, 0, 1)
    scaled = x * np.divide(brighter, value, out=np.zeros_like(value), where=value > 0)
    return np.asarray(np.where(value > 0, scaled, 255 * brighter))


def _contrast(x: Array, share: float, draws: Draws) -> Array:
    x = x / 255
    mean = x.mean((1, 2), keepdims=True)
    return np.asarray(np.clip((x - mean) * share + mean, 0, 1) * 255)


def _elastic_transform(x: Array, parameters: tuple[float, float, float], draws: Draws) -> Array:
    """Apply a random affine map, which moves three points; then move pixels by a smooth random field.

    The parameters are shares of the image's side: the field's strength and smoothness, and how far the three
    points may move.
    """
    from scipy.ndimage import gaussian_filter

    side = x.shape[1]
    length, smooth, far = (share * side for share in parameters)
    middle, reach = side // 2, side // 3
    points = np.array([[1, 1], [1, -1], [-1, -1]]) * reach + middle
    moved = np.stack([points + draw.uniform(-far, far, (3, 2)) for draw in draws])
    affine = np.linalg.solve(np.concatenate([moved, np.ones((len(x), 3, 1))], 2), points[None].astype(float))
    place = np.arange(side, dtype=np.float64)
    columns, rows = np.meshgrid(place, place)
    source = np.stack([columns, rows, np.ones_like(rows)], -1)[None] @ affine[:, None]
    x = _sample(x, source[..., 1], source[..., 0], repeats_edge=False)
    moves = np.stack([draw.uniform(-1, 1, (2, side, side)) for draw in draws])
    moves = length * gaussian_filter(moves, (0, 0, smooth, smooth), mode="reflect", truncate=3)
    return np.clip(_sample(x, rows + moves[:, 1], columns + moves[:, 0], repeats_edge=True), 0, 255)


def _sample(x: Array, rows: Array, columns: Array, *, repeats_edge: bool) -> Array:
    """Interpolate images at places (N, S, S) between pixels; outside, images are mirrored at the edge."""
    side, every = x.shape[1], np.arange(len(x))[:, None, None]

    def mirrored(place: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        period = 2 * side if repeats_edge else 2 * side - 2
        place = place % period
        return np.where(place < side, place, period - place - repeats_edge)

    top, left = np.floor(rows).astype(np.int64), np.floor(columns).astype(np.int64)
    down, right = (rows - top)[..., None], (columns - left)[..., None]
    rows_2, columns_2 = (mirrored(top), mirrored(top + 1)), (mirrored(left), mirrored(left + 1))
    above, below = (
        x[every, row, columns_2[0]] * (1 - right) + x[every, row, columns_2[1]] * right for row in rows_2
    )
    return np.asarray(above * (1 - down) + below * down)


def _pixelate(x: Array, share: float, draws: Draws) -> Array:
    from PIL import Image

    side = x.shape[1]
    small = int(side * share)

    def one(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        image = Image.fromarray(pixels).resize((small, small), Image.Resampling.BOX)
        return np.asarray(image.resize((side, side), Image.Resampling.BOX))

    return np.stack([one(pixels) for pixels in x.astype(np.uint8)]).astype(np.float64)


def _jpeg_compression(x: Array, quality: int, draws: Draws) -> Array:
    from PIL import Image

    def one(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=quality)
        with Image.open(file) as opened:
            return np.asarray(opened)

    return np.stack([one(pixels) for pixels in x.astype(np.uint8)]).astype(np.float64)


# fmt: off
CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": Corruption(_gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot_noise": Corruption(_shot_noise, (500, 250, 100, 75, 50)),
    "impulse_noise": Corruption(_impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "defocus_blur": Corruption(_defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "glass_blur": Corruption(
        _glass_blur, ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2))
    ),
    "motion_blur": Corruption(_motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "zoom_blur": Corruption(_zoom_blur, (1.06, 1.11, 1.16, 1.21, 1.26)),
    "snow": Corruption(_snow, (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95), (0.1, 0.2, 1, 0.5, 10, 4, 0.9), (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85), (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    )),
    "frost": Corruption(_frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    "fog": Corruption(_fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "brightness": Corruption(_brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": Corruption(_contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "elastic_transform": Corruption(_elastic_transform, (
        (0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03),
    )),
    "pixelate": Corruption(_pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg_compression": Corruption(_jpeg_compression, (80, 65, 58, 50, 40)),
}
# fmt: on
SEVERITIES = (1, 2, 3, 4, 5)
