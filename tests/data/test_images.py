"""Decoding: images of any mode or shape become RGB squares, and broken ones are listed separately."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from intnacl.data import images
from intnacl.data.images import Item, decode, decode_all, is_image
from mistakes import must_refuse


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def test_an_image_of_the_right_size_keeps_every_pixel(image):
    data = image(1)
    wanted = np.asarray(Image.open(io.BytesIO(data))).transpose(2, 0, 1)
    assert np.array_equal(decode(data, 8), wanted)
    with pytest.raises(ValueError, match="is 9×8, not 8×8"):
        decode(image(size=(9, 8)), 8, exact=True)
    names = ("a/b.JPEG", "a/notes.txt", "a/._b.jpg")
    assert [is_image(Path(name)) for name in names] == [True, False, False]


def test_the_central_square_is_kept_and_averaged_not_sampled():
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, 10:20] = 200
    assert (decode(encoded(Image.fromarray(pixels)), 10) == 200).all()
    checkers = np.indices((64, 64)).sum(0) % 2 * 255
    small = decode(encoded(Image.fromarray(checkers.astype(np.uint8))), 8)
    assert np.abs(small.astype(int) - 127).max() <= 2


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK"])
def test_every_mode_becomes_rgb(mode):
    image = Image.new("RGB", (8, 8), (255, 255, 255)).convert(mode)
    assert (decode(encoded(image, "TIFF"), 8) == np.full((3, 8, 8), 255)).all()


def test_a_transparent_palette_is_decoded_without_a_warning():
    image = Image.new("P", (8, 8))
    image.putpalette([10, 20, 30] * 256)
    assert decode(encoded(image, transparency=b"\x00\x80"), 8)[:, 0, 0].tolist() == [10, 20, 30]


@pytest.mark.parametrize(
    "data",
    [
        encoded(Image.fromarray(np.full((8, 8), 0x4000, np.uint16))),
        b"P5 8 8 65535\n" + np.full((8, 8), 0x4000, ">u2").tobytes(),
        b"P5 8 8 4095\n" + np.full((8, 8), 0x0400, ">u2").tobytes(),
    ],
    ids=["png", "deep pgm", "12-bit pgm"],
)
def test_sixteen_bit_grey_keeps_its_levels(data):
    assert (decode(data, 8) == 0x40).all()


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_grey_of_unknown_range_is_broken_rather_than_clipped(dtype):
    with pytest.raises(ValueError, match=r"32-bit grey \(mode [IF]\) has no known range"):
        decode(encoded(Image.fromarray(np.full((8, 8), 0.5 * 2**9, dtype)), "TIFF"), 8)


def test_a_photograph_is_turned_upright():
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[:, :4] = 255  # lying: left half white
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° clockwise: left becomes top
    out = decode(encoded(Image.fromarray(pixels), exif=exif), 8)
    assert (out[:, :4] == 255).all()
    assert (out[:, 4:] == 0).all()


def test_broken_images_are_listed_separately_and_the_order_is_kept(image, monkeypatch):
    monkeypatch.setattr(images, "CHUNK", 3)
    data = [image(seed) for seed in range(8)]
    items = [Item(f"p{i}", data[i], i) for i in range(8)]
    items[2] = Item("empty", b"", 2)
    items[5] = Item("truncated", image(5, size=(64, 64))[:300], 5)
    items[6] = Item("text", b"not an image at all", 6)
    out = io.BytesIO()
    labels, skipped = decode_all(items, len(items), out, size=8)
    assert labels == [0, 1, 3, 4, 7]
    assert list(skipped) == ["empty", "truncated", "text"]
    assert skipped["empty"] == "empty"
    assert skipped["text"] == "UnidentifiedImageError: cannot identify image file"
    assert out.getvalue() == b"".join(decode(data[i], 8).tobytes() for i in labels)


def test_an_unreadable_file_is_an_error_not_a_broken_image(tmp_path):
    gone = [Item("gone", tmp_path / "gone.png", 0)]
    must_refuse(decode_all, gone, 1, io.BytesIO(), r"cannot read .*gone\.png", size=8)
