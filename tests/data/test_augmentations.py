"""The named augmentations, and settings that no augmentation can have."""

from intnacl.data.augmentations import AUGMENTATIONS, AugmentConfig
from mistakes import refused


def test_the_paper_recipe_is_the_default_and_strength_multiplies_the_four_jitters():
    assert AUGMENTATIONS["paper"] == AugmentConfig()
    assert [AUGMENTATIONS[name].blur_p for name in ("paper", "simclr")] == [0, 0.5]
    assert AugmentConfig(strength=0.5).factors == (0.4, 0.4, 0.4, 0.1)
    assert not any(config.jitters for config in (AugmentConfig(strength=0.0), AUGMENTATIONS["crop_flip"]))


test_impossible_settings_are_named = refused(
    lambda wrong: AugmentConfig(**wrong),
    ({"flip_p": 1.5}, r"flip_p=1.5 must be a probability"),
    ({"blur_p": float("nan")}, r"blur_p=nan must be a probability"),
    ({"crop_scale": (0.5, 2.0)}, r"crop_scale=\(0.5, 2.0\).*<= 1"),
    ({"crop_ratio": (2.0, 1.0)}, r"crop_ratio=\(2.0, 1.0\) must be \(low, high\)"),
    ({"crop_ratio": (1.0, float("inf"))}, r"crop_ratio=\(1.0, inf\) must be \(low, high\)"),
    ({"jitter": (float("nan"), 0.1, 0.1, 0.1)}, r"jitter=\(nan, 0.1.*four numbers >= 0"),
    ({"blur_sigma": (0.0, 1.0)}, r"blur_sigma=\(0.0, 1.0\).*0 < low"),
    ({"strength": -1.0}, r"strength=-1.0 must be a number >= 0"),
    ({"strength": 3.0}, r"hue=0.6.* must be at most 0.5"),
    ({"jitter": (0.1, -0.1, 0.1, 0.1)}, r"jitter=\(0.1, -0.1.*four numbers >= 0"),
    ({"jitter": (0.1, 0.1, 0.1)}, r"jitter=\(0.1, 0.1, 0.1\).*four numbers"),
    ({"blur_kernel": 4}, r"blur_kernel=4 must be an odd number"),
    ({"mix_of": "x2"}, r"mix_of='x2' is unknown.* own, x0, x1"),
)
