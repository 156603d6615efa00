"""Encoders that come with the package, each in a folder like a run's, which is never written to."""

import os
from pathlib import Path

SHIPPED = Path(__file__).resolve().parents[1] / "shipped"


def pretrained() -> list[str]:
    """Return the names of the encoders that come with the package.

    `from_pretrained`, `open_run` and the commands take such a name wherever they take a run.
    """
    return sorted(checksum.parent.name for checksum in SHIPPED.glob("*/encoder.sha256"))


def located(path: str | Path) -> Path:
    """Return the folder of a shipped encoder for its name, and any other path unchanged.

    An existing file or folder takes precedence over a shipped encoder of the same name.
    """
    path = Path(path)
    return SHIPPED / path if str(path) in pretrained() and not os.path.lexists(path) else path


def is_shipped(folder: str | Path) -> bool:
    """True for the folder of an encoder that comes with the package."""
    return Path(folder).resolve().parent == SHIPPED
