"""Figures as SVG inside a page: they take the page's ink and its light or dark background."""

import io
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

from intnacl.plots.evaluation import RIGHT, WRONG

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#010203"  # a colour no figure uses: it stands for the page's own text colour
INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
SWAPS = {INK: "currentColor", RIGHT.lower(): "var(--right)", WRONG.lower(): "var(--wrong)"}


def inline_svg(draw: Callable[[], "Figure"], title: str, key: str | None = None) -> str:
    """The figure that `draw` makes as an `<svg>` element, named for readers that do not see it.

    `key` is its own among the figures of a page; None: its title is.
    """
    import matplotlib

    buffer = io.BytesIO()
    # A salt of its own keeps the ids of two figures in one page apart, and equal figures equal.
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": key or title, **dict.fromkeys(INKED, INK)}
    with matplotlib.rc_context(settings):
        draw().savefig(buffer, format="svg", transparent=True, metadata=NO_METADATA)
    svg = buffer.getvalue().decode()
    for color, replacement in SWAPS.items():
        svg = svg.replace(color, replacement)
    element = svg[svg.index("<svg") :]
    return element.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)
