"""Corruptions: the pixels of the originals, an image always corrupted alike, and the photographs of frost."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_image

from intnacl.data import corruptions
from intnacl.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from intnacl.errors import InputError

RECORDED = json.loads(Path(__file__).with_name("corrupted.json").read_text())


def images():
    """Two crops of a photograph, at a fifth of its size: (2, 3, 32, 32)."""
    pixels = load_sample_image("china.jpg")[::5, ::5]
    crops = np.stack([pixels[20:52, 40:72], pixels[40:72, 80:112]])
    return torch.from_numpy(crops).permute(0, 3, 1, 2).contiguous()


def block_means(pixels):
    """Means of 8×8 pixels in each channel: (N, 3, S, S) -> (N·3·16,)."""
    return torch.nn.functional.avg_pool2d(pixels.float(), 8).flatten()


def one_photograph():
    """A made-up one; the recorded figures of frost are with the package's own."""
    return [np.full((60, 60, 3), 200.0)] * 5


@pytest.mark.parametrize("name", [name for name in CORRUPTIONS if name != "frost"])
def test_pixels_are_those_of_the_script_that_made_cifar_10_c(name):
    """Its functions gave these means for the same generators' numbers, run with scikit-image 0.26 and OpenCV
    5.0; motion blur, which needs ImageMagick there, is that of imagecorruptions 1.1.2."""
    for severity in SEVERITIES:
        found = block_means(corrupt(images(), name, severity))
        recorded = torch.tensor(RECORDED[f"{name}-{severity}"])
        # scikit-image now draws the impulses from a generator of its own.
        tolerance = 20 if name == "impulse_noise" else 0.3
        assert (found - recorded).abs().max() < tolerance, severity
        assert (found - recorded).mean().abs() < 1.5, severity


def test_frost_adds_a_piece_of_a_photograph(monkeypatch):
    monkeypatch.setattr(corruptions, "frost_photographs", one_photograph)
    x = images()
    for severity, (of_image, of_frost) in zip(SEVERITIES, CORRUPTIONS["frost"].severities, strict=True):
        wanted = (of_image * x.double() + of_frost * 200).clamp(0, 255).floor()
        assert (corrupt(x, "frost", severity) - wanted).abs().max() <= 1


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_an_image_is_always_corrupted_in_the_same_way(name, monkeypatch):
    monkeypatch.setattr(corruptions, "frost_photographs", one_photograph)
    x = images()[[0, 1, 0]]
    whole = corrupt(x, name, 3, seed=5)
    assert torch.equal(corrupt(x[1:], name, 3, seed=5, places=[1, 2]), whole[1:])
    random = not torch.equal(whole[0], whole[2])
    fixed = ("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression", "frost")
    assert random == (name not in fixed)
    assert random == (not torch.equal(corrupt(x, name, 3, seed=6), whole))
    assert whole.dtype == torch.uint8
    assert whole.shape == x.shape
    assert not torch.equal(whole, x)


def test_mistakes_are_named(monkeypatch):
    monkeypatch.setattr(corruptions, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"photographs of the corruption frost needs imagecorruptions: pip"):
        corrupt(images(), "frost", 1)
    with pytest.raises(InputError, match="did you mean 'snow'"):
        corrupt(images(), "snoww", 1)
    with pytest.raises(InputError, match="severity=6 must be a whole number from 1 to 5"):
        corrupt(images(), "snow", 6)
