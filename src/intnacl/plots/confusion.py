"""The picture of a confusion matrix, for a few classes and for many."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from intnacl.evaluation.confusion import Confusion
from intnacl.plots.curves import shortened
from intnacl.plots.style import COLORS, font_families

if TYPE_CHECKING:
    from matplotlib.figure import Figure

READABLE = 16  # the most classes whose names and counts can be read on a phone
FAINTEST = 0.2  # least opacity of a cell that is not empty
NAME_LENGTH = 14  # characters of a class's name beside the picture


def draw_confusion(counts: Confusion, names: Sequence[str]) -> "Figure":
    """Draw a row for each true class and a column for each predicted one.

    The opacity of a cell grows with the square root of its share of the row, from a minimum that lets rare
    confusions show. Up to `READABLE` classes are labelled with names and counts; more are only numbered.
    """
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    counts_CC = np.array(counts)
    share_CC = counts_CC / counts_CC.sum(1, keepdims=True).clip(1)
    opacity_CC = np.where(counts_CC > 0, FAINTEST + (1 - FAINTEST) * np.sqrt(share_CC), 0)
    # Translucent cells suit light and dark pages alike.
    cells_CC4 = np.concatenate([np.full((*counts_CC.shape, 3), to_rgb(COLORS[0])), opacity_CC[..., None]], 2)
    figure = Figure(figsize=(5.2, 5.0), layout="constrained")
    axes = figure.add_subplot(xlabel="predicted class", ylabel="true class")
    axes.imshow(cells_CC4, interpolation="none")
    if len(counts) > READABLE:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(6, integer=True))
        return figure
    shown = [shortened(name, NAME_LENGTH) for name in names]
    style: dict[str, Any] = {"fontsize": 8, "fontfamily": font_families(shown), "parse_math": False}
    longest = max(map(len, shown))
    axes.set_xticks(range(len(shown)), shown, **style, rotation=90 if longest > 4 else 0)
    axes.set_yticks(range(len(shown)), shown, **style)
    axes.tick_params(length=0)
    for (i, j), count in np.ndenumerate(counts_CC):
        if count:
            ink: dict[str, Any] = {"color": "white"} if opacity_CC[i, j] > 0.6 else {}
            axes.text(j, i, f"{count:,}", ha="center", va="center", fontsize=8, **ink)
    return figure
