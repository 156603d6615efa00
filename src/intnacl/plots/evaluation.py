"""Drawings of the evaluators' figures: each function takes figures and returns a matplotlib Figure to save.

Figures are made without pyplot, so nothing is kept globally and no display is needed.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from intnacl.attacks.named import ATTACK_NAMES
from intnacl.plots.fonts import families

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito's palette, which colour-blind readers can tell apart, with a grey for its black: dark enough for
# white and light enough for black pages. Markers say the same once more.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#707070")
MARKERS = "os^DvPX"
STYLES = ("-", "--", ":", "-.")
UNDER = {"linewidth": 7, "alpha": 0.35, "linestyle": "-", "marker": "", "zorder": 1}
"""The worst case lies under the attack that it mostly is."""
RIGHT, WRONG = "#007A5A", "#C00000"


def draw_probe(curves: Mapping[str, Sequence[float]]) -> "Figure":
    """Test accuracy after each probe epoch, one line per name; a ring marks the best, a dot the last."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="probe epoch", ylabel="test accuracy (%)")
    for i, (name, accuracies) in enumerate(curves.items()):
        color, epochs = COLORS[i % len(COLORS)], range(1, len(accuracies) + 1)
        best = list(accuracies).index(max(accuracies)) + 1
        label = f"{name}: last {accuracies[-1]:.2f}, best {accuracies[best - 1]:.2f} (epoch {best})"
        axes.plot(epochs, accuracies, color=color, linewidth=1.2, label=label)
        axes.plot(len(accuracies), accuracies[-1], "o", color=color, markersize=5)
        axes.plot(best, accuracies[best - 1], "o", color=color, markersize=8, fillstyle="none")
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)  # whole epochs
    _finish(axes)
    return figure


def draw_robustness(attacks: Sequence[Mapping[str, Any]]) -> "Figure":
    """Accuracy over eps, a line for each attack, from rows of `robustness.evaluate`.

    A curve begins at the clean accuracy of its own images.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4.2), layout="constrained")
    axes = figure.add_subplot(xlabel="eps (pixels in [0, 1])", ylabel="accuracy (%)")
    curves: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in attacks:
        curves.setdefault((row["name"], row["images"]), []).append(row)
    most = max((images for _, images in curves), default=0)
    for i, ((name, images), rows) in enumerate(curves.items()):
        points = [(0.0, rows[0]["clean"]), *sorted((row["eps"], row["accuracy"]) for row in rows)]
        fewer = f", {images:,} images" if images < most else ""
        style: dict[str, Any] = {"marker": MARKERS[i % len(MARKERS)], "linestyle": STYLES[i % len(STYLES)]}
        axes.plot(
            *zip(*points, strict=True),
            color=COLORS[i % len(COLORS)],
            markersize=4,
            label=f"{ATTACK_NAMES.get(name, name)}{fewer}",
            **(UNDER if name == "worst_case" else style),
        )
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    _finish(axes)
    return figure


def draw_examples(found: Mapping[str, Tensor], classes: Sequence[str], *, title: str) -> "Figure":
    """Rows of clean images, perturbations and attacked images; the title over an image is the prediction.

    `found` comes from `robustness.examples`. Perturbations are shown as ½ + δ/(2·max|δ|): grey is no change.
    Right predictions are green, wrong ones red and starred.
    """
    from matplotlib.figure import Figure

    delta = found["adversarial"] - found["clean"]
    strength = float(delta.abs().max())
    amplified = f"perturbation\n× {0.5 / strength:.0f}" if strength else "no perturbation"
    rows = {
        "clean": (found["clean"], found["predicted"]),
        amplified: (0.5 + delta / (2 * strength or 1.0), None),
        "attacked": (found["adversarial"], found["predicted_adversarial"]),
    }
    figure = Figure(figsize=(1.2 * len(delta) + 0.6, 4.6), layout="constrained")
    grid = figure.subplots(3, len(delta), squeeze=False)
    for axes_row, (name, (images, predicted)) in zip(grid, rows.items(), strict=True):
        axes_row[0].set_ylabel(name)
        for i, axes in enumerate(axes_row):
            _show(axes, images[i])
            if predicted is not None:
                _name(axes, classes[int(predicted[i])], right=bool(predicted[i] == found["labels"][i]))
    figure.suptitle(title)
    return figure


def _show(axes: "Axes", image_3HW: Tensor) -> None:
    axes.imshow(image_3HW.clamp(0, 1).permute(1, 2, 0).numpy(), interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])


def _name(axes: "Axes", name: str, *, right: bool) -> None:
    axes.set_title(
        name if right else f"{name}*", fontsize=9, fontfamily=families([name]),
        color=RIGHT if right else WRONG, parse_math=False,
    )  # fmt: skip


def _finish(axes: "Axes") -> None:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    for text in axes.legend(fontsize=8, frameon=False).get_texts():
        text.set_parse_math(False)
        text.set_fontfamily(families([text.get_text()]))
