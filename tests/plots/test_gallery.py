"""The grid: every image where it belongs, and a file that shows them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from intnacl.data.augmentations import RECIPES
from intnacl.errors import InputError
from intnacl.plots.gallery import draw_gallery, tile, view_columns


def flat(*values: int) -> torch.Tensor:
    """One uniform 4×4 image a value."""
    return torch.tensor(values, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 4, 4)


def test_tiles_stand_in_their_row_and_column() -> None:
    canvas, xs, ys = tile(torch.stack([flat(10, 20, 30), flat(40, 50, 60)]))
    assert canvas.shape == (3, 15, 10)
    centres = [[int(canvas[0, int(y), int(x)]) for x in xs] for y in ys]
    assert centres == [[10, 40], [20, 50], [30, 60]]
    assert (canvas[:, 4] == 255).all()


def test_the_file_shows_each_colour(tmp_path: Path) -> None:
    red = torch.tensor([1.0, 0.0, 0.0])[None, :, None, None].expand(2, 3, 4, 4)
    blue = (red.flip(1) * 255).to(torch.uint8)
    draw_gallery({"red": red, "blue": blue}, ["first", "second"], tmp_path / "new" / "grid.png")
    pixels = np.asarray(Image.open(tmp_path / "new" / "grid.png").convert("RGB"))
    reds, blues = ((pixels == colour).all(-1) for colour in ([255, 0, 0], [0, 0, 255]))
    assert reds.sum() == pytest.approx(blues.sum(), rel=0.05)
    assert reds.sum() > 10_000
    assert reds.nonzero()[1].max() < blues.nonzero()[1].min()  # red is the left column
    assert ((pixels < 50).all(-1)).sum() > 100  # titles and captions in black


def test_long_captions_are_not_cut_off(tmp_path: Path) -> None:
    draw_gallery({"original": flat(200)}, ["a very long name of a class indeed"], tmp_path / "grid.png")
    pixels = np.asarray(Image.open(tmp_path / "grid.png").convert("L"))
    assert (pixels[:, 0] == 255).all()
    assert (pixels[0] == 255).all()
    assert pixels.shape[1] > 2 * pixels.shape[0]


def test_a_caption_with_dollars_is_no_formula(tmp_path: Path) -> None:
    draw_gallery({"original": flat(200)}, ["from_$5_to_$10"], tmp_path / "grid.png")
    assert (tmp_path / "grid.png").exists()


def test_captions_are_in_fonts_that_have_their_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    for family in ("DejaVu Sans", "DejaVu Sans Mono"):
        monkeypatch.setattr("intnacl.plots.gallery.families", lambda texts, family=family: [family])
        draw_gallery({"image": flat(1)}, ["iiiiiiiiiiii"], tmp_path / "grid.png")
        sizes.append(np.asarray(Image.open(tmp_path / "grid.png")).shape[1])
    assert sizes[0] < sizes[1]


def test_columns_are_what_training_sees() -> None:
    images = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8)
    columns = view_columns(images, RECIPES["paper"], seed=3, extra=1, mixed=2, lam=0.25)
    assert list(columns) == ["original", "anchor", "positive", "extra 1", "mixed 1", "mixed 2"]
    anchor = columns["anchor"]
    torch.testing.assert_close(columns["mixed 2"], 0.25 * anchor + 0.75 * anchor.roll(2, 0))
    assert not torch.equal(anchor, columns["positive"])


def test_without_augmentation_the_views_are_the_originals() -> None:
    images = torch.randint(0, 256, (3, 3, 8, 8), dtype=torch.uint8)
    columns = view_columns(images, RECIPES["none"], extra=0, mixed=0)
    torch.testing.assert_close(columns["anchor"] * 255, images.float(), atol=1e-3, rtol=0)


def test_wrong_wishes_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"grid\.txt' is no image: end its name in one of \.png"):
        draw_gallery({"red": flat(1)}, ["a"], tmp_path / "grid.txt")
    with pytest.raises(InputError, match="extra=-1 must be a whole number from 0 to 250"):
        view_columns(flat(1, 2, 3), RECIPES["paper"], extra=-1)


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 10**30])
def test_a_seed_that_no_draw_takes_is_refused(seed: int) -> None:
    with pytest.raises(InputError, match=f"seed={seed} is out of range: it must fit into 64 bits"):
        view_columns(flat(10, 20, 30), RECIPES["none"], seed=seed)


@pytest.mark.parametrize(
    ("rows", "wanted", "named"),
    [(3, {"extra": 2**31}, "extra=2147483648"), (3, {"extra": 2**64}, "extra="), (300, {}, "rows=300")],
)
def test_more_than_a_drawing_can_hold_is_refused(rows: int, wanted: dict[str, int], named: str) -> None:
    with pytest.raises(InputError, match=f"{named}.* must be a whole number from 0 to 250"):
        view_columns(flat(*[0] * rows), RECIPES["none"], **wanted)
