"""The one style of all figures: colours, markers, fonts for any script, labels beside curves, inline SVG.

Figures are made without pyplot, so that nothing is kept globally and no display is needed.
"""

import io
import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intnacl.errors import InputError, printable
from intnacl.files import disk_errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito's palette, which colour-blind readers can tell apart, with a grey instead of black that can be
# seen on white and on black pages. Markers distinguish the curves as well.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#707070")
MARKERS = "os^DvPX"
FORMATS = (".png", ".jpg", ".pdf", ".svg")
RIGHT, WRONG = "#007A5A", "#C00000"  # colours of right and wrong predictions

PAGE_INK = "#010203"  # a colour that no figure uses: it stands for the page's own text colour
INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
PAGE_COLORS = {PAGE_INK: "currentColor", RIGHT.lower(): "var(--right)", WRONG.lower(): "var(--wrong)"}
LAST_RESORT = ("Last Resort", ".LastResort", "LastResort")  # fonts that draw every character as a box


def open_axes(axes: "Axes") -> None:
    """Give axes a faint grid, and no frame at the top and on the right."""
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def save_figure(figure: "Figure", path: Path, *, dpi: int = 140, **options: Any) -> None:
    """Save a figure in the format of the file's suffix, and create its parent folders."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"out={str(path)!r} is not an image: end its name in one of {', '.join(FORMATS)}.")
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=dpi, **options)


def inline_svg(draw: Callable[[], "Figure"], title: str, key: str | None = None) -> str:
    """Return the figure that `draw` makes as an `<svg>` element in the page's own colours.

    Args:
        draw: Makes the figure; text and axes take the page's text colour.
        title: Description for screen readers.
        key: Text that is unique among the figures of the page; by default the title.
    """
    import matplotlib

    buffer, title = io.BytesIO(), printable(title)
    # The salt makes the ids of an SVG unique on its page, and equal figures equal byte by byte.
    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": printable(key or title),
        **dict.fromkeys(INKED, PAGE_INK),
    }
    no_metadata: Any = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context(settings):
        draw().savefig(buffer, format="svg", transparent=True, metadata=no_metadata)
    svg = buffer.getvalue().decode()
    for color, replacement in PAGE_COLORS.items():
        svg = svg.replace(color, replacement)
    element = svg[svg.index("<svg") :]
    return element.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)


def font_families(texts: Iterable[str]) -> list[str]:
    """Return matplotlib's font families and, for characters that they lack, installed ones that have them.

    matplotlib's own font has no Chinese, Japanese or Korean characters, among others.
    """
    from matplotlib.font_manager import FontProperties, findfont

    own = FontProperties()
    return [*own.get_family(), *_fonts_with(frozenset("".join(texts)) - _characters(findfont(own)))]


@cache
def _fonts_with(missing: frozenset[str]) -> tuple[str, ...]:
    """Return installed fonts that together cover the missing characters, regular weights first."""
    from matplotlib.font_manager import fontManager

    found = []
    for font in sorted(fontManager.ttflist, key=lambda font: (font.weight != 400, font.fname)):
        if not missing:
            break
        if not font.name.startswith(LAST_RESORT) and missing & _characters(font.fname):
            found.append(font.name)
            missing -= _characters(font.fname)
    return tuple(found)


@cache
def _characters(file: str) -> frozenset[str]:
    """Return the characters of a font file; none if it cannot be read."""
    from matplotlib.font_manager import get_font

    try:
        return frozenset(map(chr, get_font(file).get_charmap()))
    except (OSError, RuntimeError):
        return frozenset()


def end_labels(
    axes: Any, ends: Sequence[tuple[float, float, str, str]], *, right: float | None = None
) -> None:
    """Write labels (x, y, text, colour) beside the points where curves end, with a line to each point.

    The labels stand right of the rightmost point, or of x = `right`, and are moved apart if they overlap.
    """
    from matplotlib.transforms import offset_copy

    if not ends:
        return
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    heights = spread_apart([y for _, y, _, _ in ends], 0.075 * (high - low), low, high)
    right = max(x for x, *_ in ends) if right is None else right
    beside = offset_copy(axes.transData, axes.figure, x=14, units="points")
    line = {"alpha": 0.6, "arrowstyle": "-", "lw": 0.6, "shrinkA": 1, "shrinkB": 3, "relpos": (0, 0.5)}
    for (x, y, text, color), height in zip(ends, heights, strict=True):
        axes.annotate(
            text,
            (x, y),
            xytext=(right, height),
            textcoords=beside,
            color=color,
            va="center",
            annotation_clip=False,
            arrowprops={**line, "color": color},
        )


def spread_apart(
    values: Sequence[float], step: float, low: float = -math.inf, high: float = math.inf
) -> list[float]:
    """Move values apart so that neighbours keep a distance of `step`; each group keeps its mean.

    If they leave [low, high], all of them are shifted back.
    """
    groups: list[tuple[list[int], float]] = []  # the indices of its values, and their mean
    for i in sorted(range(len(values)), key=lambda i: values[i]):
        members, mean = [i], values[i]
        while groups and mean - groups[-1][1] < step * (len(members) + len(groups[-1][0])) / 2 - 1e-12:
            before, _ = groups.pop()
            members = before + members
            mean = math.fsum(values[m] for m in members) / len(members)
        groups.append((members, mean))
    placed = [0.0] * len(values)
    for members, mean in groups:
        for k, i in enumerate(members):
            placed[i] = mean + step * (k - (len(members) - 1) / 2)
    shift = max(0.0, low - min(placed)) - max(0.0, max(placed) - high) if placed else 0.0
    return [place + shift for place in placed]
