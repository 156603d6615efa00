"""Mark wide figures, so that they scroll on narrow screens instead of becoming too small to read."""

from pathlib import Path

from docutils import nodes
from PIL import Image
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

PIXELS, RATIO = 800, 1.4  # the smallest width and the smallest ratio of width to height of a wide figure


def mark_wide(app: Sphinx, doctree: nodes.document) -> None:
    """Give the class `wide` to the page's wide images."""
    for image in doctree.findall(nodes.image):
        path = Path(app.srcdir) / image["uri"]
        if path.suffix == ".png" and path.exists():
            with Image.open(path) as opened:
                width, height = opened.size
            if width >= PIXELS and width >= RATIO * height:
                image["classes"].append("wide")


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register with Sphinx."""
    app.connect("doctree-read", mark_wide)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
