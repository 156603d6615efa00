"""Fonts for names in drawings: matplotlib's own has no Chinese, Japanese or Korean letters, among others."""

from collections.abc import Iterable
from functools import cache

LAST_RESORT = ("Last Resort", ".LastResort", "LastResort")  # have a box for every letter


def families(texts: Iterable[str]) -> list[str]:
    """matplotlib's font families and, for letters that they lack, installed ones that have them."""
    from matplotlib.font_manager import FontProperties, findfont

    own = FontProperties()
    return [*own.get_family(), *_others(frozenset("".join(texts)) - _letters(findfont(own)))]


@cache
def _others(missing: frozenset[str]) -> tuple[str, ...]:
    from matplotlib.font_manager import fontManager

    found = []
    for font in sorted(fontManager.ttflist, key=lambda font: (font.weight != 400, font.fname)):
        if not missing:
            break
        here = frozenset() if font.name.startswith(LAST_RESORT) else missing & _letters(font.fname)
        if here:
            found.append(font.name)
            missing -= here
    return tuple(found)


@cache
def _letters(file: str) -> frozenset[str]:
    """The letters of a font; of one that cannot be read, none."""
    from matplotlib.font_manager import get_font

    try:
        return frozenset(map(chr, get_font(file).get_charmap()))
    except (OSError, RuntimeError):
        return frozenset()
