"""Learning curves of a run: the terms of the loss, and beside them accuracies where there are any."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from intnacl.training.journal import TIMES, informative, records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOT_DRAWN = {"epoch", "step", "lr", *TIMES}
PERCENT = {"knn": "kNN, test images", "accuracy": "accuracy, training"}


def draw_curves(log: Path, out: Path) -> None:
    """Draw `log.jsonl` as a figure."""
    learning_curves(log).savefig(out, dpi=140)


def learning_curves(log: Path) -> "Figure":
    """The figure of `log.jsonl`."""
    from matplotlib.figure import Figure

    rows = [informative(record) for record in records(log)]
    names = dict.fromkeys(name for row in rows for name in row if name not in NOT_DRAWN)
    percent = [name for name in names if name in PERCENT]
    figure = Figure(figsize=(9 if percent else 5, 3.6), layout="constrained")
    axes = figure.subplots(1, 2 if percent else 1, squeeze=False)[0]
    for name in names:
        if name not in PERCENT:
            _plot(axes[0], rows, name, name, marker="o" if len(rows) == 1 else None)
    axes[0].set(xlabel="epoch", title="training loss and its terms")
    for name in percent:
        _plot(axes[1], rows, name, PERCENT[name], marker="o", markersize=3)
        axes[1].set(xlabel="epoch", title="accuracy, percent")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
        axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)  # whole epochs
        if axis.lines:  # below, where no line can run through it
            place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18), "ncols": len(axis.lines)}
            axis.legend(frameon=False, **place)
    return figure


def _plot(axis: Any, rows: list[dict[str, Any]], name: str, label: str, **style: Any) -> None:
    points = [(row["epoch"], row[name]) for row in rows if name in row]
    line = axis.plot(*zip(*points, strict=True), label=label, **style)[0]
    axis.annotate(
        f"{points[-1][1]:.4g}", points[-1], xytext=(0, 4), textcoords="offset points", ha="right",
        color=line.get_color(),
    )  # fmt: skip
