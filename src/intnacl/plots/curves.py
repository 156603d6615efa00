"""Curves: the training of a run, its probes, accuracy over the radius of attacks, and losses side by side."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from intnacl.attacks.named import ATTACK_NAMES, eps_text
from intnacl.errors import printable
from intnacl.plots.style import COLORS, MARKERS, end_labels, font_families, open_axes
from intnacl.training.journal import NO_CURVE, RANK, figure_text, informative

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NOT_DRAWN = {"lr", "images_per_s", *NO_CURVE}
PERCENT = {
    "knn": "kNN", "knn_train": "kNN, training images",
    "probe": "online probe", "probe_train": "online probe, training views",
    "accuracy": "accuracy, training",
}  # fmt: skip
LABELS = {**PERCENT, RANK: "RankMe"}
LONGEST = 32  # characters of a name in a legend
NEAR = 0.1  # share of the axis: labels closer than this would overlap
PANEL = (5.2, 3.8)  # inches: half a page, or the width of a phone
LINES = ("-", "--", ":", "-.")
Curve = Sequence[tuple[float, float, float]]
"""(eps, mean accuracy, its standard deviation), by rising eps; a deviation of 0 is not drawn."""


def learning_panels(records: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the panels of a run's log that have curves: title -> names of the curves."""
    rows = [informative(dict(record)) for record in records]
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in NOT_DRAWN]
    panels = {
        "training loss and its terms": [name for name in names if name not in (*PERCENT, RANK)],
        "accuracy, percent": [name for name in names if name in PERCENT],
        "effective rank of the features": [name for name in names if name == RANK],
    }
    return {title: shown for title, shown in panels.items() if shown}


def draw_learning(records: Sequence[Mapping[str, Any]], only: str | None = None) -> "Figure":
    """Draw the terms of the loss over epochs and, beside them, accuracies and rank if the log has any.

    Args:
        records: The records of a run's log, one for each epoch.
        only: The title of a panel to draw by itself.
    """
    from matplotlib.figure import Figure

    panels = {title: names for title, names in learning_panels(records).items() if only in (None, title)}
    figure = Figure(figsize=(PANEL[0] * len(panels), PANEL[1]), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (title, names) in zip(grid, panels.items(), strict=True):
        for name in names:
            style: dict[str, Any] = {"marker": "o" if len(records) == 1 else None}
            if name in (*PERCENT, RANK):
                style = {"marker": "o", "markersize": 3}
            points = [(record["epoch"], record[name]) for record in records if name in record]
            line = axes.plot(*zip(*points, strict=True), label=LABELS.get(name, name), **style)[0]
            last = {"xytext": (0, 4), "textcoords": "offset points", "ha": "right", "color": line.get_color()}
            axes.annotate(figure_text(name, points[-1][1]), points[-1], **last)
        axes.set(xlabel="epoch", title=title)
        open_axes(axes)
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)  # whole epochs
        if axes.lines:  # below the axes, where no curve can run through the legend
            _legend(axes, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=len(axes.lines))
    return figure


def draw_probe(curves: Mapping[str, Sequence[float]]) -> "Figure":
    """Draw test accuracy after each probe epoch, one line per name; a ring marks the best, a dot the last."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=PANEL, layout="constrained")
    axes = figure.add_subplot(xlabel="probe epoch", ylabel="test accuracy (%)")
    for i, (name, accuracies) in enumerate(curves.items()):
        color, epochs = COLORS[i % len(COLORS)], range(1, len(accuracies) + 1)
        best = list(accuracies).index(max(accuracies)) + 1
        label = (
            f"{shortened(name)}: last {accuracies[-1]:.2f}, best {accuracies[best - 1]:.2f} (epoch {best})"
        )
        axes.plot(epochs, accuracies, color=color, linewidth=1.2, label=label)
        axes.plot(len(accuracies), accuracies[-1], "o", color=color, markersize=5)
        axes.plot(best, accuracies[best - 1], "o", color=color, markersize=8, fillstyle="none")
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)  # whole epochs
    open_axes(axes)
    _legend(axes, fontsize=8)
    return figure


def draw_robustness(attacks: Sequence[Mapping[str, Any]]) -> "Figure":
    """Draw accuracy over eps, a line for each attack, from rows of `robustness.evaluate`.

    A curve begins at the clean accuracy on the images that were attacked.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=PANEL, layout="constrained")
    axes = figure.add_subplot(xlabel="eps (pixels in [0, 1])", ylabel="accuracy (%)")
    curves: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in attacks:
        curves.setdefault((row["name"], row["images"]), []).append(row)
    most = max((images for _, images in curves), default=0)
    for i, ((name, images), rows) in enumerate(curves.items()):
        points = [(0.0, rows[0]["clean"]), *sorted((row["eps"], row["accuracy"]) for row in rows)]
        style: dict[str, Any] = {"marker": MARKERS[i % len(MARKERS)], "linestyle": LINES[i % len(LINES)]}
        if name == "worst_case":  # a broad band behind the attack that it mostly coincides with
            style = {"linewidth": 7, "alpha": 0.35, "zorder": 1}
        fewer = f", {images:,} images" if images < most else ""
        label = f"{ATTACK_NAMES.get(name, name)}{fewer}"
        color = COLORS[i % len(COLORS)]
        axes.plot(*zip(*points, strict=True), color=color, markersize=4, label=label, **style)
    axes.set_ylim(bottom=0)
    _radius_axis(axes, {row["eps"] for row in attacks})
    open_axes(axes)
    _legend(axes, fontsize=8)
    return figure


def draw_comparison(panels: Mapping[str, Mapping[str, Curve]], title: str) -> "Figure":
    """Draw accuracy over eps: a panel for each attack, with a line for each loss, labelled at its end.

    Args:
        panels: Name of the attack -> name of the loss -> its curve.
        title: Title of the whole figure.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.1 * len(panels) + 0.8, 4.2), layout="constrained")
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (attack, curves) in zip(grid, panels.items(), strict=True):
        ends = []
        for i, (label, curve) in enumerate(curves.items()):
            eps, means, deviations = zip(*curve, strict=True)
            color, marker = COLORS[i % len(COLORS)], MARKERS[i % len(MARKERS)]
            bars = deviations if any(deviations) else None
            axes.errorbar(eps, means, yerr=bars, color=color, marker=marker, capsize=3, clip_on=False)
            ends.append((eps[-1], means[-1], label, color))
        axes.set(xlabel="eps (pixels in [0, 1])", title=attack, ylim=(0, 101))
        _radius_axis(axes, {point[0] for curve in curves.values() for point in curve})
        end_labels(axes, ends)
        open_axes(axes)
    grid[0].set_ylabel("accuracy (%)")
    figure.suptitle(printable(title), parse_math=False)
    return figure


def _radius_axis(axes: "Axes", radii: Iterable[float]) -> None:
    """Start the axis of radii at 0, and label as many of the attacked radii as fit."""
    axes.set_xlim(left=0)
    labelled: list[float] = [0.0]
    far = axes.get_xlim()[1]
    for eps in sorted(radii, key=lambda eps: ("/" not in eps_text(eps), -eps)):  # 8/255 rather than 0.032
        if all(abs(eps - other) > NEAR * far for other in labelled):
            labelled.append(eps)
    axes.set_xticks(sorted(labelled), [eps_text(eps) for eps in sorted(labelled)])


def shortened(name: str, longest: int = LONGEST) -> str:
    """Return a name, without its beginning if it is too long: the names of folders differ at their ends."""
    return name if len(name) <= longest else f"…{name[1 - longest :]}"


def _legend(axes: "Axes", **options: Any) -> None:
    """Add a legend whose names may hold dollar signs and characters of any script."""
    for text in axes.legend(frameon=False, **options).get_texts():
        text.set_parse_math(False)
        text.set_text(printable(text.get_text()))
        text.set_fontfamily(font_families([text.get_text()]))
