"""Draw docs/images/family.png, the losses and their parts: `python docs/draw_family.py`."""

from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch

from intnacl.losses.config import PRESETS, LossConfig

OUT = Path(__file__).parent / "images" / "family.png"
# Okabe and Ito's colours, which colour-blind readers can tell apart; the parts also differ in their place.
BLUE, GREEN, ORANGE, GREY, INK = "#0072B2", "#00795A", "#C65000", "#6b7280", "#1f2937"
NAMES = {
    "simclr": "SimCLR",
    "debiased": "Debiased",
    "hardneg": "HardNeg",
    "debiased_hardneg": "Debiased\n+ HardNeg",
    "adv": "Adv",
    "intcl": "IntCl",
    "intnacl": "IntNaCl",
}


def tint(colour: str, share: float) -> tuple[float, ...]:
    """Return the colour mixed with white."""
    return tuple(1 - share * (1 - int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5))


def box(axes: Axes, x: float, y: float, wide: float, high: float, colour: str, share: float = 0.07) -> None:
    """Draw a rounded box whose lower left corner is (x, y)."""
    shape: dict[str, Any] = dict(
        boxstyle="round,pad=0,rounding_size=0.16", facecolor=tint(colour, share), edgecolor=colour
    )
    axes.add_patch(FancyBboxPatch((x, y), wide, high, lw=1.5, **shape))


def write(axes: Axes, x: float, y: float, text: str, size: float, colour: str = INK, **style: Any) -> None:
    """Write text at (x, y), centred unless the style says otherwise."""
    axes.text(x, y, text, size=size, color=colour, **{"ha": "center", "va": "center"} | style)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Draw a grey arrow."""
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=18, lw=1.8, color=GREY))


def draw_path(axes: Axes) -> None:
    """Draw the top: from NCA via SimCLR to IntNaCl."""
    whole = r"$\mathcal{L}_\mathrm{NaCl}(G,M,\lambda)\;+\;\alpha\,\mathcal{L}_\mathrm{Robust}(G,w)$"
    for x, wide, name, formula, note in (
        (0.25, 3.5, "NCA", r"$-\log\,\sum_{c_j=c_i}\,p_{ij}$", "neighbours share their class"),
        (
            5.5,
            3.5,
            "SimCLR",
            r"$-\log\,\dfrac{\kappa^+}{\kappa^+ +\,N g_0}$",
            "views of an image are neighbours",
        ),
        (10.75, 5.0, "IntNaCl", whole, "the whole family"),
    ):
        box(axes, x, 7.5, wide, 1.8, INK, 0.03)
        write(axes, x + wide / 2, 8.99, name, 14, weight="bold")
        write(axes, x + wide / 2, 8.36, formula, 14)
        write(axes, x + wide / 2, 7.76, note, 9.5, GREY)
    for x, text in ((3.8, "unit sphere,\nno labels"), (9.05, "better pairs,\nattacked views")):
        arrow(axes, (x, 8.3), (x + 1.65, 8.3))
        write(axes, x + 0.8, 8.42, text, 9.5, va="bottom", linespacing=1.25)


def draw_branches(axes: Axes, centres: tuple[float, ...]) -> None:
    """Draw the arrows from IntNaCl to its three parts."""
    axes.plot([centres[-1], centres[-1]], [7.5, 7.1], color=GREY, lw=1.8)
    axes.plot([centres[0], centres[-1]], [7.1, 7.1], color=GREY, lw=1.8)
    for x in centres:
        arrow(axes, (x, 7.12), (x, 6.58))


def draw_positives(axes: Axes, x: float) -> None:
    """Draw the left part: the two NaCl losses."""
    part(axes, x, BLUE, "positives", r"$\mathcal{L}_\mathrm{NaCl}(G,M,\lambda)$")
    for y, name, formula, note in (
        (
            4.22,
            "NCA",
            r"$-\log\,\dfrac{S}{S+\,N G},\quad S=\sum_{j=1}^{M}\kappa_j^+$",
            "M views, all positives",
        ),
        (
            2.8,
            "MIXNCA",
            r"$-\lambda\,\log\,\Omega-(1-\lambda)\,\log(1-\Omega)$",
            "mixed views too, positive with probability λ",
        ),
    ):
        box(axes, x + 0.2, y, 4.6, 1.31, BLUE, 0.0)
        write(axes, x + 0.4, y + 1.03, name, 10.5, BLUE, ha="left", weight="bold")
        write(axes, x + 2.6, y + 0.72, formula, 12)
        write(axes, x + 2.5, y + 0.17, note, 9.5, GREY)


def draw_negatives(axes: Axes, x: float) -> None:
    """Draw the middle part: the three estimators, one inside the other."""
    part(axes, x, GREEN, "negatives", r"$G:\;\; g_0\subset g_1\subset g_2$")
    layers = (
        (2.8, 4.6, 2.73, r"$g_2$", "β: hard ones weigh more"),
        (2.98, 3.95, 1.88, r"$g_1$", "τ⁺: false ones subtracted"),
        (3.16, 3.3, 1.03, r"$g_0$", "the plain mean of κ⁻"),
    )
    for depth, (y, wide, high, name, note) in enumerate(layers):
        left = x + 0.2 + 0.325 * depth
        box(axes, left, y, wide, high, GREEN, 0.05 * depth)
        write(axes, left + 0.2, y + high - 0.4, name, 14, GREEN, ha="left")
        write(axes, left + 0.75, y + high - 0.42, note, 9.5, INK, ha="left")


def draw_robustness(axes: Axes, x: float) -> None:
    """Draw the right part: the robust term and its two weights."""
    part(axes, x, ORANGE, "robustness", r"$\alpha\,\mathcal{L}_\mathrm{Robust}(G,w)$")
    formula = r"$-\,w(x)\,\log\,\dfrac{\kappa^{\mathrm{adv}}}{\kappa^{\mathrm{adv}}+\,N G}$"
    write(axes, x + 2.5, 5.05, formula, 14)
    write(axes, x + 2.5, 4.35, "an attacked view stays a neighbour", 9.5, GREY)
    for left, name, note in (
        (x + 0.2, r"$w=1$", "every image alike"),
        (x + 2.57, r"$w=\hat{w}(x)$", "hard images more"),
    ):
        box(axes, left, 2.8, 2.23, 1.2, ORANGE, 0.0)
        write(axes, left + 1.115, 3.6, name, 13)
        write(axes, left + 1.115, 3.12, note, 9.5, GREY)


def part(axes: Axes, x: float, colour: str, title: str, formula: str) -> None:
    """Draw the frame of one part: title on the left, formula on the right."""
    box(axes, x, 2.6, 5.0, 3.95, colour)
    write(axes, x + 0.25, 6.1, title, 14, colour, ha="left", weight="bold")
    write(axes, x + 4.75, 6.1, formula, 13, ha="right")


def draw_presets(axes: Axes) -> None:
    """Draw the bottom: the presets; a filled disc marks a part that goes beyond SimCLR."""
    write(axes, 0.25, 2.2, "presets", 12, INK, ha="left", weight="bold")
    for place, (key, keywords) in enumerate(PRESETS.items()):
        config = LossConfig(**keywords)
        x = 0.25 + 2.2357 * place
        box(axes, x, 0.2, 2.085, 1.75, INK, 0.03)
        write(axes, x + 1.04, 1.52, NAMES[key], 11, weight="bold", linespacing=1.1)
        used = (config.num_positives > 1, config.negatives != "g0", config.alpha > 0)
        for spot, (colour, filled) in enumerate(zip((BLUE, GREEN, ORANGE), used, strict=True)):
            face = colour if filled else "white"
            axes.add_patch(
                Circle((x + 0.74 + 0.3 * spot, 1.0), 0.1, facecolor=face, edgecolor=colour, lw=1.5)
            )
        write(axes, x + 1.04, 0.5, settings(config), 9.5, INK, linespacing=1.35)


def settings(config: LossConfig) -> str:
    """Return the choices of a preset in the paper's symbols, in at most two lines."""
    positives = f"MIXNCA, M = {config.num_positives}\n" if config.num_positives > 1 else ""
    tau = ", τ⁺ = 0" if config.negatives == "g2" and config.tau_plus == 0 else ""
    weight = {"one": "w = 1", "loss": "ŵ"}[config.weight]
    robust = f", α = {config.alpha:g}, {weight}" if config.alpha else ""
    return f"{positives}g{config.negatives[1]}{tau}{robust}"


def main() -> None:
    """Draw everything on one white card, which can be read on light and dark pages."""
    with rc_context({"mathtext.fontset": "stixsans"}):
        figure = Figure(figsize=(11.4, 6.77), facecolor="white")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, 16), ylim=(0, 9.5), aspect="equal")
        axes.axis("off")
        lefts = (0.25, 5.5, 10.75)
        draw_path(axes)
        draw_branches(axes, tuple(left + 2.5 for left in lefts))
        draw_positives(axes, lefts[0])
        draw_negatives(axes, lefts[1])
        draw_robustness(axes, lefts[2])
        draw_presets(axes)
        figure.savefig(OUT, dpi=160, metadata={"Software": None})


if __name__ == "__main__":
    main()
