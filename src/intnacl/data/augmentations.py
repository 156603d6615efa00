"""Settings of `augment`: the operations on an image, their strengths and probabilities, and named sets."""

import math
from dataclasses import dataclass

from intnacl.errors import Check, InputError, Settings, must, one_of, setting

PROBABILITY = must(lambda v: 0 <= v <= 1, "a probability in [0, 1]")


def _interval(top: float = math.inf) -> Check:
    """Return a check for (low, high) with 0 < low ≤ high ≤ top."""
    limit = f" <= {top}" if top < math.inf else ""
    return must(
        lambda v: 0 < v[0] <= v[1] <= top and v[1] < math.inf, f"(low, high) with 0 < low <= high{limit}"
    )


@dataclass(frozen=True, kw_only=True)
class AugmentConfig(Settings):
    """The operations on an image, their strengths and probabilities. The defaults are those of `paper`."""

    crop_scale: tuple[float, float] | None = setting((0.08, 1.0), _interval(1.0))
    """Range of the crop's area as a share of the image's; None: no crop."""
    crop_ratio: tuple[float, float] = setting((3 / 4, 4 / 3), _interval())
    """Range of the crop's ratio of width to height."""
    crop_padding: int = setting(0, must(lambda v: v >= 0, "0 or more"))
    """Pixels of black border added to the image before a box of the image's own size is cut out. This
    requires crop_scale=none."""
    flip_p: float = setting(0.5, PROBABILITY)
    """Probability of a horizontal flip."""
    strength: float = setting(1.0, must(lambda v: v >= 0, "a number >= 0"))
    """s: multiplies the four numbers of `jitter`."""
    jitter: tuple[float, float, float, float] = setting(
        (0.8, 0.8, 0.8, 0.2),
        must(lambda v: len(v) == 4 and all(0 <= part < math.inf for part in v), "four numbers >= 0"),
    )
    """Brightness, contrast, saturation, hue."""
    jitter_p: float = setting(0.8, PROBABILITY)
    """Probability of colour jitter."""
    grayscale_p: float = setting(0.2, PROBABILITY)
    """Probability of conversion to grey."""
    blur_p: float = setting(0.0, PROBABILITY)
    """Probability of blur."""
    blur_sigma: tuple[float, float] = setting((0.1, 2.0), _interval())
    """Range of the blur's standard deviation in pixels."""
    blur_kernel: int = setting(3, must(lambda v: v >= 1 and v % 2 == 1, "an odd number >= 1"))
    """Kernel size of the blur, odd; SimCLR's is a tenth of the image's side."""
    solarize_p: float = setting(0.0, PROBABILITY)
    """Probability of solarisation."""
    solarize_threshold: float = 0.5
    """Pixels at or above this value are inverted."""
    mix_of: str = setting("x0", one_of("x0", "x1", "own"))
    """Source of mixed views (mixnca): "x0", the first view; "x1", the second; "own", further views."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_hue = must(lambda v: 0 <= v <= 0.5, "at most 0.5, half the circle")
        check_hue("strength times the jitter of hue", self.factors[3])
        if self.crop_padding and self.crop_scale is not None:
            raise InputError(
                f"crop_padding={self.crop_padding} is one way to crop, crop_scale={self.crop_scale} another: "
                "set crop_scale=none, or leave crop_padding out."
            )

    @property
    def factors(self) -> tuple[float, float, float, float]:
        """Half-widths of the jitter of brightness, contrast, saturation and hue: strength times `jitter`."""
        brightness, contrast, saturation, hue = (self.strength * value for value in self.jitter)
        return brightness, contrast, saturation, hue

    @property
    def jitters(self) -> bool:
        """True if colours are jittered at all."""
        return self.jitter_p > 0 and max(self.factors) > 0


AUGMENTATIONS: dict[str, AugmentConfig] = {
    "paper": AugmentConfig(),
    "simclr": AugmentConfig(strength=0.5, blur_p=0.5),
    "crop_flip": AugmentConfig(jitter_p=0.0, grayscale_p=0.0),
    # The usual augmentation of adversarial training on CIFAR.
    "pad_crop_flip": AugmentConfig(crop_scale=None, crop_padding=4, jitter_p=0.0, grayscale_p=0.0),
    "none": AugmentConfig(crop_scale=None, flip_p=0.0, jitter_p=0.0, grayscale_p=0.0),
}
