"""Draw the two figures of docs/architecture.md: `python docs/draw_architecture.py`.

docs/images/rooms.png shows which room imports which, read from the source. docs/images/way.png shows the
files that a run passes through. Both are narrow, so that they can be read on a phone.
"""

import ast
from pathlib import Path

from draw_family import BLUE, GREEN, GREY, INK, ORANGE, arrow, box, write
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch

SOURCE = Path(__file__).parents[1] / "src" / "intnacl"
IMAGES = Path(__file__).parent / "images"
PURPLE = "#9A4F82"
ROOMS = (
    "errors", "files", "console", "losses", "models", "attacks", "data", "training", "evaluation", "theory",
    "plots", "runs", "paper", "cli",
)  # fmt: skip
STEPS = (
    (PURPLE, "Read the flags", "cli", ("program.py", "flags.py", "train.py")),
    (ORANGE, "Decide every setting, open the run folder", "runs", ("resolve.py", "config.py", "folder.py")),
    (BLUE, "Load the images, once", "data", ("datasets.py", "digits.py", "cache.py")),
    (ORANGE, "Build encoder, objective and trainer", "runs", ("stages.py", "pretrain.py", "objective.py")),
    (GREEN, "Take the next batch", "training", ("trainer.py", "source.py")),
    (BLUE, "Draw and apply its augmentations", "data", ("draws.py", "transforms.py", "views.py")),
    (INK, "Make the adversarial view, if any", "attacks", ("training_view.py", "gradient.py")),
    (INK, "Embed all views in one pass", "models", ("encoders.py", "resnets.py", "batchnorm.py")),
    (INK, "Compute the loss", "losses", ("integrated.py", "nacl.py", "similarity.py")),
    (GREEN, "Update the weights; log and save", "training", ("step.py", "journal.py", "checkpoint.py")),
    (PURPLE, "Fit the probe, attack its classifier", "evaluation", ("probe.py", "robustness.py")),
    (ORANGE, "Write result and page", "runs", ("measure.py", "result.py", "page.py")),
)
LOOP = (4, 9)  # the first and last step of an update


def imports(room: str) -> set[str]:
    """The other rooms that the files of a room import."""
    files = [SOURCE / f"{room}.py"] if (SOURCE / f"{room}.py").exists() else (SOURCE / room).rglob("*.py")
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    names = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    parts = [name.split(".") for name in names]
    return {part[1] for part in parts if part[0] == "intnacl" and len(part) > 1} - {room} & set(ROOMS)


def page(wide: float, high: float) -> tuple[Figure, Axes]:
    """A white figure of this size in inches, whose axes are in inches too."""
    figure = Figure(figsize=(wide, high), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, wide), ylim=(0, high), aspect="equal")
    axes.axis("off")
    return figure, axes


def draw_rooms() -> Figure:
    """Draw one row per room, with a disc in the column of each room that it imports."""
    figure, axes = page(5.2, 5.4)
    cell, left, top = 0.27, 1.25, 4.55
    for row, room in enumerate(ROOMS):
        y = top - row * 0.315
        write(axes, left - 0.15, y, room, 11, ha="right", weight="bold")
        slant = dict(rotation=55, rotation_mode="anchor", ha="left", va="center")
        write(axes, left + row * cell, top + 0.2, room, 9.5, GREY, **slant)
        axes.plot([left - 0.1, left + (len(ROOMS) - 1) * cell], [y, y], color="#e5e7eb", lw=1, zorder=0)
        axes.add_patch(Circle((left + row * cell, y), 0.05, facecolor="#d1d5db", edgecolor="none"))
        for name in imports(room):
            x = left + ROOMS.index(name) * cell
            axes.add_patch(Circle((x, y), 0.09, facecolor=BLUE, edgecolor="none"))
    return figure


def draw_steps() -> Figure:
    """Draw one box per step of a run, and the loop over updates."""
    step, high = 0.86, 0.64
    figure, axes = page(5.2, step * len(STEPS) + 0.2)
    tops = [step * (len(STEPS) - place) + 0.04 for place in range(len(STEPS))]
    for place, (colour, title, room, files) in enumerate(STEPS):
        y = tops[place] - high
        assert all((SOURCE / room / file).exists() for file in files), (room, files)
        box(axes, 0.1, y, 4.45, high, colour)
        write(axes, 0.25, y + 0.43, title, 11.5, ha="left", weight="bold")
        write(axes, 0.25, y + 0.18, f"{room}/  " + "  ".join(files), 10, colour, ha="left")
        if place:
            arrow(axes, (2.3, tops[place - 1] - high + 0.03), (2.3, tops[place] - 0.03))
    ends = [(4.55, tops[place] - high / 2) for place in reversed(LOOP)]
    style = "arc,angleA=0,angleB=0,armA=22,armB=22,rad=8"
    axes.add_patch(
        FancyArrowPatch(
            *ends, connectionstyle=style, arrowstyle="-|>", mutation_scale=16, lw=1.8, color=GREEN
        )
    )
    write(axes, 5.02, sum(y for _, y in ends) / 2, "every update", 11, GREEN, rotation=270)
    return figure


def main() -> None:
    """Write both figures."""
    for name, draw in (("rooms", draw_rooms), ("way", draw_steps)):
        draw().savefig(IMAGES / f"{name}.png", dpi=160, metadata={"Software": None})


if __name__ == "__main__":
    main()
