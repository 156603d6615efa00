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

# Okabe & Ito's palette, which colour-blind readers can tell apart, with a grey for its black: dark enough for
# white and light enough for black pages. Markers tell the curves apart once more.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#707070")
MARKERS = "os^DvPX"
FORMATS = (".png", ".jpg", ".pdf", ".svg")
RIGHT, WRONG = "#007A5A", "#C00000"  # of predictions

PAGE_INK = "#010203"  # a colour that no figure uses: it stands for the page's own text colour
INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
PAGE_COLORS = {PAGE_INK: "currentColor", RIGHT.lower(): "var(--right)", WRONG.lower(): "var(--wrong)"}
LAST_RESORT = ("Last Resort", ".LastResort", "LastResort")  # fonts that have a box for every letter


def open_axes(axes: "Axes") -> None:
    """Give axes a faint grid, and no frame at the top and on the right."""
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def save_figure(figure: "Figure", path: Path, *, dpi: int = 140, **options: Any) -> None:
    """Save a figure in the format that the name of the file ends in, and make the folders above it."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"out={str(path)!r} is no image: end its name in one of {', '.join(FORMATS)}.")
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=dpi, **options)


def inline_svg(draw: Callable[[], "Figure"], title: str, key: str | None = None) -> str:
    """Return the figure that `draw` makes as an `<svg>` element in the page's own colours.

    Args:
        draw: called with the page's ink as the colour of text and axes.
        title: for readers that do not see the figure.
        key: distinguishes it from the other figures of its page; by default the title does.
    """
    import matplotlib

    buffer, title = io.BytesIO(), printable(title)
    # The salt keeps the ids of two figures in one page apart, and equal figures equal.
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
    """Return matplotlib's font families and, for letters that they lack, installed ones that have them.

    matplotlib's own font has no Chinese, Japanese or Korean letters, among others.
    """
    from matplotlib.font_manager import FontProperties, findfont

    own = FontProperties()
    return [*own.get_family(), *_fonts_with(frozenset("".join(texts)) - _letters(findfont(own)))]


@cache
def _fonts_with(missing: frozenset[str]) -> tuple[str, ...]:
    """Installed fonts that together have as many of these letters as any, regular weights first."""
    from matplotlib.font_manager import fontManager

    found = []
    for font in sorted(fontManager.ttflist, key=lambda font: (font.weight != 400, font.fname)):
        if not missing:
            break
        if not font.name.startswith(LAST_RESORT) and missing & _letters(font.fname):
            found.append(font.name)
            missing -= _letters(font.fname)
    return tuple(found)


@cache
def _letters(file: str) -> frozenset[str]:
    """The letters that a font file has; none where it cannot be read."""
    from matplotlib.font_manager import get_font

    try:
        return frozenset(map(chr, get_font(file).get_charmap()))
    except (OSError, RuntimeError):
        return frozenset()


def end_labels(
    axes: Any, ends: Sequence[tuple[float, float, str, str]], *, right: float | None = None
) -> None:
    """Write labels (x, y, text, colour) beside the points where curves end, with a line to each point.

    They stand beside the rightmost point, or at x = `right`, and are moved apart where they would overlap.
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
    """Move values apart so that neighbours keep a distance of `step`, each group around its old mean.

    All of them are shifted back where they would leave [low, high].
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
