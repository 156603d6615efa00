"""What may happen to an image, how strongly and how often: settings of `augment`, some with a name."""

import math
from dataclasses import dataclass

from intnacl.errors import InputError, check_choice


def _check_range(name: str, value: float, low: float, high: float, wanted: str) -> None:
    if not low <= value <= high:
        raise InputError(f"{name}={value!r} must be {wanted}.")


def _check_interval(name: str, interval: tuple[float, float] | None, top: float) -> None:
    if interval is not None and not (0 < interval[0] <= interval[1] <= top and interval[1] < math.inf):
        limit = f" <= {top}" if top < math.inf else ""
        raise InputError(f"{name}={interval!r} must be (low, high) with 0 < low <= high{limit}.")


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """What may happen to an image, how strongly and how often. The defaults are the `paper` recipe."""

    crop_scale: tuple[float, float] | None = (0.08, 1.0)
    """Area of the crop over area of the image, from and to; None: no crop."""
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Width over height of the crop, from and to."""
    flip_p: float = 0.5
    """Probability of a horizontal flip."""
    strength: float = 1.0
    """s: multiplies the four numbers of `jitter`."""
    jitter: tuple[float, float, float, float] = (0.8, 0.8, 0.8, 0.2)
    """Brightness, contrast, saturation, hue."""
    jitter_p: float = 0.8
    """Probability of colour jitter."""
    grayscale_p: float = 0.2
    """Probability of conversion to grey."""
    blur_p: float = 0.0
    """Probability of blur."""
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    """Width of the blur in pixels, from and to."""
    blur_kernel: int = 3
    """Taps of the blur, odd; SimCLR takes a tenth of the image's side."""
    solarize_p: float = 0.0
    """Probability of solarisation."""
    solarize_threshold: float = 0.5
    """Pixels at or above this value are inverted."""
    mix_of: str = "x0"
    """What mixed views (mixnca) are made of: "x0", the first view; "x1", the second; "own", further ones."""

    def __post_init__(self) -> None:
        for name in ("flip_p", "jitter_p", "grayscale_p", "blur_p", "solarize_p"):
            _check_range(name, getattr(self, name), 0, 1, "a probability in [0, 1]")
        for name, top in (("crop_scale", 1.0), ("crop_ratio", math.inf), ("blur_sigma", math.inf)):
            _check_interval(name, getattr(self, name), top)
        _check_range("strength", self.strength, 0, math.inf, "a number >= 0")
        if len(self.jitter) != 4 or not all(0 <= value < math.inf for value in self.jitter):
            raise InputError(f"jitter={self.jitter!r} must be four numbers >= 0.")
        _check_range(
            "strength times the jitter of hue", self.factors[3], 0, 0.5, "at most 0.5, half the circle"
        )
        if self.blur_kernel < 1 or self.blur_kernel % 2 == 0:
            raise InputError(f"blur_kernel={self.blur_kernel!r} must be an odd number >= 1.")
        check_choice("mix_of", self.mix_of, ("x0", "x1", "own"))

    @property
    def factors(self) -> tuple[float, float, float, float]:
        """Half-widths of the jitter of brightness, contrast, saturation and hue: strength times `jitter`."""
        brightness, contrast, saturation, hue = (self.strength * value for value in self.jitter)
        return brightness, contrast, saturation, hue

    @property
    def jitters(self) -> bool:
        """Whether any colour is ever jittered."""
        return self.jitter_p > 0 and max(self.factors) > 0


RECIPES: dict[str, AugmentConfig] = {
    "paper": AugmentConfig(),
    "simclr": AugmentConfig(strength=0.5, blur_p=0.5),
    "crop_flip": AugmentConfig(jitter_p=0.0, grayscale_p=0.0),
    "none": AugmentConfig(crop_scale=None, flip_p=0.0, jitter_p=0.0, grayscale_p=0.0),
}
