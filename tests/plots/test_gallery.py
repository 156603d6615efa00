"""Grids: every image in its place, and the same views as in training."""

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from PIL import Image
from torch import Tensor

from digits_model import held_out, trained_model
from intnacl.attacks import adversarial_view
from intnacl.attacks.named import named_attack
from intnacl.data.augmentations import AUGMENTATIONS
from intnacl.evaluation.robustness import examples
from intnacl.plots.gallery import (
    UNTOUCHED,
    adversarial_columns,
    draw_examples,
    draw_gallery,
    save_gallery,
    tile,
    view_columns,
)
from mistakes import must_refuse, refused


def flat(*values: int) -> Tensor:
    """One uniform 4×4 image for each value."""
    return torch.tensor(values, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 4, 4)


def saved(path: Path, columns: dict[str, Tensor], captions: list[str]) -> np.ndarray:
    save_gallery(draw_gallery(columns, captions), path)
    return np.asarray(Image.open(path).convert("RGB"))


def test_tiles_are_placed_in_their_row_and_column():
    canvas, xs, ys = tile(torch.stack([flat(10, 20, 30), flat(40, 50, 60)]))
    assert canvas.shape == (3, 15, 10)
    centres = [[int(canvas[0, int(y), int(x)]) for x in xs] for y in ys]
    assert centres == [[10, 40], [20, 50], [30, 60]]
    assert (canvas[:, 4] == 255).all()


def test_the_file_shows_each_color(tmp_path):
    red = torch.tensor([1.0, 0.0, 0.0])[None, :, None, None].expand(2, 3, 4, 4)
    blue = (red.flip(1) * 255).to(torch.uint8)
    pixels = saved(tmp_path / "grid.png", {"red": red, "blue": blue}, ["first", "second"])
    reds, blues = ((pixels == color).all(-1) for color in ([255, 0, 0], [0, 0, 255]))
    assert reds.sum() == pytest.approx(blues.sum(), rel=0.05)
    assert reds.sum() > 10_000
    assert reds.nonzero()[1].max() < blues.nonzero()[1].min()  # red is the left column
    assert ((pixels < 50).all(-1)).sum() > 100  # titles and captions in black


def test_captions_are_whole_not_parsed_as_formulas_and_use_fonts_that_have_their_characters(
    tmp_path, monkeypatch
):
    pixels = saved(tmp_path / "grid.png", {"original": flat(200)}, ["a name of a class from_$5_to_$10"])
    assert (pixels[:, 0] == 255).all()
    assert (pixels[0] == 255).all()
    assert pixels.shape[1] > 2 * pixels.shape[0]
    widths = []
    for family in ("DejaVu Sans", "DejaVu Sans Mono"):
        monkeypatch.setattr("intnacl.plots.gallery.font_families", lambda texts, family=family: [family])
        widths.append(saved(tmp_path / "grid.png", {"image": flat(1)}, ["iiiiiiiiiiii"]).shape[1])
    assert widths[0] < widths[1]


def test_columns_are_the_views_of_training():
    images = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8)
    columns = view_columns(images, AUGMENTATIONS["paper"], seed=3, extra=1, mixed=2, lam=0.25)
    assert list(columns) == ["original", "anchor", "positive", "extra 1", "mixed 1", "mixed 2"]
    anchor = columns["anchor"]
    torch.testing.assert_close(columns["mixed 2"], 0.25 * anchor + 0.75 * anchor.roll(2, 0))
    assert not torch.equal(anchor, columns["positive"])


test_wrong_counts_and_seeds_are_refused = refused(
    lambda rows, wanted: view_columns(flat(*[0] * rows), AUGMENTATIONS["none"], **wanted),
    (3, {"extra": -1}, "extra=-1 must be a whole number from 0 to 250"),
    (3, {"extra": 2**64}, "extra=.* must be a whole number from 0 to 250"),
    (300, {}, "rows=300 must be a whole number from 0 to 250"),
    (3, {"seed": 2**63}, f"seed={2**63} is out of range: it must fit into a signed 64-bit integer"),
    (3, {"seed": -(2**63) - 1}, "is out of range: it must fit into a signed 64-bit integer"),
)


def test_the_change_of_an_adversarial_view_is_shown_around_grey():
    images = held_out(6)[0] / 255
    columns = adversarial_columns(trained_model(), images, 0.1)
    views, change = columns.values()
    assert list(columns) == ["adversarial", "change × 5"]
    assert torch.equal(views, adversarial_view(trained_model(), images, 0.1))
    assert (views - images).abs().amax() == pytest.approx(0.1, abs=1e-6)
    torch.testing.assert_close(change, 0.5 + 5 * (views - images))
    must_refuse(adversarial_columns, trained_model(), images[:1], 0.1, "one image has no adversarial view")


def test_examples_show_images_perturbations_and_predictions(monkeypatch):
    monkeypatch.setattr("intnacl.plots.gallery.font_families", lambda texts: [f"font of {texts[0]}"])
    images, labels = held_out(5)
    found = examples(trained_model(), images, labels, named_attack("fgsm", 0.2))
    assert (found["predicted_adversarial"] != labels).any()
    figure = draw_examples(found, [f"$digit_{i}" for i in range(10)], title="")
    assert len(figure.axes) == 15
    clean, perturbation, attacked = (figure.axes[row * 5] for row in range(3))
    shown = [torch.from_numpy(axes.images[0].get_array().data) for axes in (clean, perturbation, attacked)]
    torch.testing.assert_close(shown[0], found["clean"][0].permute(1, 2, 0))
    torch.testing.assert_close(shown[2], found["adversarial"][0].permute(1, 2, 0))
    assert shown[1].min() >= 0
    assert 0.9 < shown[1].max() <= 1
    assert perturbation.get_ylabel().startswith("perturbation")
    for axes, guess, label in zip(figure.axes[10:], found["predicted_adversarial"], labels, strict=True):
        assert axes.get_title() == f"$digit_{guess}" + "*" * bool(guess != label)
        assert (to_hex(axes.title.get_color()) == "#c00000") == bool(guess != label)
        assert axes.title.get_fontfamily() == [f"font of $digit_{guess}"]
    figure.draw_without_rendering()  # dollar signs are not parsed as formulas


def test_an_image_that_is_not_attacked_is_grey_with_the_reason_and_parts_look_like_the_whole():
    found = examples(trained_model(), *held_out(2), named_attack("fgsm", 0.0))
    figure = draw_examples(found, "0123456789", title="")
    assert (figure.axes[2].images[0].get_array() == 0.5).all()
    images, labels = held_out(3)
    labels = (labels + torch.tensor([1, 0, 0])) % 10
    found = examples(trained_model(), images, labels, named_attack("pgd_tuned", 0.3))
    whole, part = (draw_examples(found, "0123456789", shown=slice(*ends)) for ends in ((0, 3), (0, 2)))
    assert [[text.get_text() for text in axes.texts] for axes in whole.axes[3:6]] == [[UNTOUCHED], [], []]
    for one, other in zip(whole.axes[3:5], part.axes[2:4], strict=True):
        assert (one.images[0].get_array() == other.images[0].get_array()).all()
