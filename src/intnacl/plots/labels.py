"""Direct labels: names beside curves and points, moved apart where they would cover each other."""

import math
from collections.abc import Sequence
from typing import Any


def end_labels(ax: Any, ends: Sequence[tuple[float, float, str, str]], *, right: float | None = None) -> None:
    """Names (x, y, label, colour) beside the last of them, or right of `right`, with a line to each point."""
    from matplotlib.transforms import offset_copy

    if not ends:
        return
    low, high = ax.get_ylim()
    ax.set_ylim(low, high)
    heights = spread([y for _, y, _, _ in ends], 0.075 * (high - low), low, high)
    right = max(x for x, *_ in ends) if right is None else right
    beside = offset_copy(ax.transData, ax.figure, x=14, units="points")
    for (x, y, label, colour), height in zip(ends, heights, strict=True):
        leader = {
            "alpha": 0.6,
            "arrowstyle": "-",
            "color": colour,
            "lw": 0.6,
            "shrinkA": 1,
            "shrinkB": 3,
            "relpos": (0, 0.5),
        }
        ax.annotate(
            label, (x, y), xytext=(right, height), textcoords=beside, color=colour, va="center",
            annotation_clip=False, arrowprops=leader,
        )  # fmt: skip


def spread(
    values: Sequence[float], step: float, low: float = -math.inf, high: float = math.inf
) -> list[float]:
    """The values moved apart so that neighbours keep a distance of `step`, their middle where it was.

    All of them are moved back where they would leave [low, high].
    """
    order = sorted(range(len(values)), key=lambda i: values[i])
    blocks: list[tuple[list[int], float]] = []  # members, place of the middle
    for i in order:
        members, middle = [i], values[i]
        while blocks and middle - blocks[-1][1] < step * (len(members) + len(blocks[-1][0])) / 2 - 1e-12:
            before, _ = blocks.pop()
            members = before + members
            middle = math.fsum(values[m] for m in members) / len(members)
        blocks.append((members, middle))
    placed = [0.0] * len(values)
    for members, middle in blocks:
        for k, i in enumerate(members):
            placed[i] = middle + step * (k - (len(members) - 1) / 2)
    shift = max(0.0, low - min(placed)) - max(0.0, max(placed) - high) if placed else 0.0
    return [place + shift for place in placed]
