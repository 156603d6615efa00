"""Learning curves of a run: the terms of the loss, and the kNN accuracy where it was watched."""

from pathlib import Path
from typing import TYPE_CHECKING

from intnacl.training.journal import records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOT_DRAWN = {"epoch", "step", "lr", "images_per_s", "seconds", "knn"}


def draw_curves(log: Path, out: Path) -> None:
    """Draw `log.jsonl` to a picture."""
    learning_curves(log).savefig(out, dpi=140)


def learning_curves(log: Path) -> "Figure":
    """The figure of `log.jsonl`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = records(log)
    epochs = [row["epoch"] for row in rows]
    watched = [(row["epoch"], row["knn"]) for row in rows if "knn" in row]
    figure = Figure(figsize=(9 if watched else 5, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 2 if watched else 1, squeeze=False)[0]
    for name in [key for key in rows[-1] if key not in NOT_DRAWN] if rows else []:
        values = [row[name] for row in rows]
        if any(values):  # a term that is not used is zero throughout
            axes[0].plot(epochs, values, label=name)
    axes[0].set(xlabel="epoch", title="training loss and its terms")
    axes[0].legend(frameon=False)
    if watched:
        axes[1].plot(*zip(*watched, strict=True), marker="o", color="tab:green")
        axes[1].annotate(
            f"{watched[-1][1]:.1f} %", watched[-1], xytext=(0, -14), textcoords="offset points", ha="right"
        )
        axes[1].set(xlabel="epoch", title="kNN accuracy on test pictures, percent")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    return figure
