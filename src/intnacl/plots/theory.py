"""The figures of `intnacl nca` and `intnacl bounds`."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.decomposition import PCA

from intnacl.plots.style import save_figure
from intnacl.theory.comparison import Space
from intnacl.theory.sweep import VARIED, Sweep

INK = {"measured": "#1b6ca8", "second": "#e07b39", "paper": "#9a9a9a", "proved": "#2a2a2a", "bad": "#b3202c"}


def draw_spaces(
    spaces: dict[str, Space], accuracy: dict[str, dict[str, float]], y: npt.NDArray[Any]
) -> Figure:
    """Draw a panel for each space, coloured by class; more than two dimensions are projected by PCA."""
    figure = Figure(figsize=(3.2 * len(spaces), 3.4), layout="constrained")
    for axes, (name, space) in zip(figure.subplots(1, len(spaces)), spaces.items(), strict=True):
        z = space.points if space.points.shape[1] <= 2 else PCA(2).fit_transform(space.points)
        z = z if z.shape[1] == 2 else np.hstack([z, np.zeros_like(z)])
        axes.scatter(*z.T, c=y, cmap="tab10", s=6, linewidths=0)
        drawn = f" ({space.points.shape[1]} dimensions, by PCA)" if space.points.shape[1] > 2 else ""
        axes.set(
            title=f"{name}{drawn}\n1-NN {accuracy[name]['1-NN']:.1f} %, 5-NN {accuracy[name]['5-NN']:.1f} %"
        )
        axes.set(xticks=[], yticks=[])
    return figure


def draw_bounds(measured: Sweep) -> Figure:
    """Draw deviations over n, m and M, their tail, Lemma B.3, and the complexity of the losses over M."""
    figure = Figure(figsize=(13, 7.6), layout="constrained")
    top, bottom = figure.subplots(2, 3)
    for axes, name in zip(top, VARIED, strict=True):
        draw_deviation(axes, measured[name], name)
    figure.legend(*top[0].get_legend_handles_labels(), fontsize=8.5, loc="outside upper center", ncols=5)
    draw_tail(bottom[0], measured["tail"])
    draw_lemma(bottom[1], measured["lemma"]["exclusive or"], "Lemma B.3 on exclusive or, K = 2")
    draw_complexity(bottom[2], measured["complexity"])
    return figure


def draw_deviation(axes: Axes, rows: list[dict[str, float]], name: str) -> None:
    """Draw the measured |L_Unbiased − L_Debiased|, the mean Δ and their bounds, on logarithmic axes."""
    x = [row["value"] for row in rows]
    _plot(axes, rows, "paper", "--", color=INK["paper"], label="Theorem B.1")
    _plot(axes, rows, "proved", "-", color=INK["proved"], label="proved bound")
    _plot(axes, rows, "spread", "o-", color=INK["measured"], label="measured mean Δ, g1")
    axes.errorbar(
        x,
        [row["gap"] for row in rows],
        [2 * row["gap_error"] for row in rows],
        fmt="s:",
        color=INK["measured"],
        alpha=0.7,
        capsize=2,
        label="measured |difference|, g1 (± 2 s.e.)",
    )
    _plot(axes, rows, "plain_gap", "^-", color=INK["bad"], label="measured |difference|, g0: biased")
    _powers(axes, x)
    axes.set(yscale="log", xlabel=name, title=f"Deviation from the unbiased loss over {name}")
    axes.set_ylim(1e-4, 10)


def draw_tail(axes: Axes, rows: list[dict[str, float]]) -> None:
    """Draw P(Δ ≥ ε), measured and bounded."""
    _plot(axes, rows, "paper", "--", color=INK["paper"], label="Lemma B.2")
    _plot(axes, rows, "proved", "-", color=INK["proved"], label="proved bound")
    _plot(axes, rows, "measured", "-", color=INK["measured"], label="measured")
    axes.set(xlabel="ε", ylabel="P(Δ ≥ ε)", title="Tail of the deviation")
    axes.legend(fontsize=7.5)


def draw_lemma(axes: Axes, rows: list[dict[str, float]], title: str, fontsize: float = 7.5) -> None:
    """Draw L_Unbiased over M at N = K − 1, where it falls below the supervised losses, and at √e(K − 1)."""
    _plot(axes, rows, "unbiased", "o-", color=INK["bad"], label="L_Unbiased, N = K − 1")
    enough = "L_Unbiased, N = K − 1 (M = 1), √e (K − 1) (M ≥ 2)"
    _plot(axes, rows, "unbiased_enough", "s-", color=INK["measured"], label=enough)
    axes.axhline(rows[0]["sup_mean"], ls="--", color=INK["proved"], label="L_Sup^μ")
    axes.axhline(rows[0]["sup"], ls=":", color=INK["second"], label="L_Sup")
    _powers(axes, [row["value"] for row in rows])
    axes.set(xlabel="M", title=title, ylim=(-0.02, None))
    axes.legend(fontsize=fontsize, loc="lower left", bbox_to_anchor=(0, 0.06))  # above an L_Sup of 0


def draw_complexity(axes: Axes, rows: list[dict[str, float]]) -> None:
    """Draw R(losses) relative to M = 1, beside the 1/M of Theorems 3.1 and B.4."""
    x = [row["value"] for row in rows]
    for denominator, ink in (("MN", INK["measured"]), ("N", INK["second"])):
        values = (
            torch.tensor([[row[denominator], 2 * row[f"{denominator}_error"]] for row in rows])
            / rows[0][denominator]
        )
        label = f"measured, {'·'.join(denominator)}·G"
        axes.errorbar(
            x, values[:, 0].tolist(), values[:, 1].tolist(), fmt="o-", color=ink, capsize=2, label=label
        )
    axes.plot(x, [1 / M for M in x], "--", color=INK["paper"], label="1/M of the theorems' λ")
    _powers(axes, x)
    axes.set(yscale="log", xlabel="M", title="Complexity of the losses (M = 1 is 1)")
    axes.legend(fontsize=7.5)


def _plot(axes: Axes, rows: list[dict[str, float]], key: str, style: str, **options: Any) -> None:
    """Plot the rows' `key` over their `value`."""
    axes.plot([row["value"] for row in rows], [row[key] for row in rows], style, **options)


def _powers(axes: Axes, values: list[float]) -> None:
    """Make the x-axis logarithmic, with ticks at the values themselves."""
    axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()


def save_theory(figure: Figure, path: Path) -> None:
    """Save a figure without metadata, so that equal numbers give equal bytes."""
    save_figure(figure, path, dpi=110, metadata={"Software": None})
