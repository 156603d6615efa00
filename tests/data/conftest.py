"""Shared fixtures of the tests of data: a separate root, never the user's, and images as bytes."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default root, empty."""
    monkeypatch.setenv("INTNACL_DATA", str(tmp_path / "root"))
    return tmp_path / "root"


@pytest.fixture
def image() -> Callable[..., bytes]:
    """Noise of the given size, encoded; the seed tells images apart."""
    from PIL import Image

    def encode(seed: int = 0, size: tuple[int, int] = (8, 8), mode: str = "RGB", kind: str = "PNG") -> bytes:
        shape = (*size[::-1], 3) if mode == "RGB" else size[::-1]
        pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, kind)
        return out.getvalue()

    return encode
