"""Figures of the report, with direct labels instead of legends, in a palette for colour-blind readers.

Measured values are filled, published ones hollow or dashed, in the same colour. In the SVG, text and axes
take the text colour of the page, which can be light or dark.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from intnacl.paper.cells import FilledTable
from intnacl.plots.style import COLORS, INKED, MARKERS, end_labels, inline_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = list[tuple[float, float]]
Curve = tuple[str, Points, list[float], Points]
"""A label, the measured points, their standard deviations (or none), and the published points."""
LONGEST = 40  # characters of a label
STYLE: Any = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 9,
    **dict.fromkeys(INKED, "#222222"),
}  # fmt: skip


def draw(table: FilledTable) -> tuple[str, bytes]:
    """Return the figure of a table as SVG for any page, and as PNG on white."""
    import matplotlib as mpl

    def make() -> "Figure":
        figure = DRAWERS[str(table.figure)](table)
        for ax in figure.axes:
            if not ax.has_data():  # the default scale from 0 to 1 would be meaningless
                ax.tick_params(left=False, bottom=False, labelleft=False, labelbottom=False)
                ax.text(0.5, 0.5, "not measured yet", ha="center", va="center", transform=ax.transAxes)
        return figure

    png = io.BytesIO()
    with mpl.rc_context(STYLE):
        svg = inline_svg(make, table.title, table.key)
        make().savefig(png, format="png", dpi=160, facecolor="white")
    return svg, png.getvalue()


def plain(text: str) -> str:
    """Return a label with $ escaped for matplotlib, cut to `LONGEST` characters."""
    short = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return short.replace("$", r"\$")


def scatter(table: FilledTable) -> "Figure":
    """Draw a panel for each pair of columns: the second against the first, with a labelled point per row."""
    panels = _places(column.panel for column in table.columns)
    figure, axes = _panes(1, len(panels), (4.6 * len(panels), 3.8))
    for ax, (title, (i, j, *_)) in zip(axes[0], panels.items(), strict=True):
        points = []
        for row, cells, color, marker in zip(table.rows, table.cells, cycle(COLORS), cycle(MARKERS)):
            x, y = cells[i], cells[j]
            measured = (x.mean, y.mean) if x.mean is not None and y.mean is not None else None
            paper = (x.published.mean, y.published.mean) if x.published and y.published else None
            if paper:
                ax.plot(*paper, marker=marker, mfc="none", color=color, lw=0, alpha=0.8)
            if paper and measured:
                ax.plot(*zip(measured, paper, strict=True), color=color, lw=0.6, ls=":")
            if measured:
                ax.errorbar(*measured, xerr=x.sd, yerr=y.sd, color=color, marker=marker, capsize=2, lw=1)
                points.append((*measured, plain(row.label), color))
            elif paper:
                points.append((*paper, f"{plain(row.label)}, paper", color))
        for column, label in ((table.columns[i], ax.set_xlabel), (table.columns[j], ax.set_ylabel)):
            label(plain(column.label) + ("" if column.metric == "minutes" else " (%)"))
        ax.set_title(plain(title), loc="left")
        end_labels(ax, points, right=ax.get_xlim()[1])
    return figure


def curves(table: FilledTable) -> "Figure":
    """Draw a panel for each group of rows and panel of columns, with a curve per row over the columns' x."""
    groups = _places(row.group for row in table.rows)
    panels = _places(column.panel for column in table.columns)
    size = (3.9 * max(len(panels), 1.4), 3.0 * max(len(groups), 1.15))
    figure, axes = _panes(len(groups), len(panels), size)
    for line, (group, rows) in zip(axes, groups.items(), strict=True):
        for ax, (panel, places) in zip(line, panels.items(), strict=True):
            xs = [table.columns[j].x or 0.0 for j in places]
            series: list[Curve] = []
            for i in rows:
                cells = [(x, table.cells[i][j]) for x, j in zip(xs, places, strict=True)]
                measured = [(x, cell.mean) for x, cell in cells if cell.mean is not None]
                deviations = [cell.sd or 0.0 for _, cell in cells if cell.mean is not None]
                paper = [(x, cell.published.mean) for x, cell in cells if cell.published]
                series.append((table.rows[i].label, measured, deviations, paper))
            end_labels(ax, _draw_curves(ax, series))
            ax.set_title(plain(" · ".join(part for part in (group, panel) if part)), loc="left")
            timed = all(table.columns[j].metric == "minutes" for j in places)
            ylabel = "minutes of training" if timed else "accuracy (%)"
            ax.set(xlabel=plain(table.x_label), ylabel=ylabel)
            if len(xs) > 2 and min(xs) > 0 and max(xs) / min(xs) >= 8:  # a wide range of values
                ax.set_xscale("log")
            ax.set_xticks(xs, [f"{x:g}" for x in xs])
            ax.minorticks_off()
    return figure


def runtime(table: FilledTable) -> "Figure":
    """Draw the best accuracy so far over epochs, and over the measured minutes of training."""
    groups = _places(row.group for row in table.rows)
    accuracy = [(column.x or 0.0, j) for j, column in enumerate(table.columns) if column.metric == "clean"]
    minutes = {column.x: j for j, column in enumerate(table.columns) if column.metric == "minutes"}
    size = (9.2, 3.2 * max(len(groups), 1.15))
    figure, axes = _panes(len(groups), 2, size, sharey="row")
    for (left, right), (group, rows) in zip(axes, groups.items(), strict=True):
        for ax, label in ((left, table.x_label), (right, "minutes of training, as measured")):
            ax.set(xlabel=plain(label), ylabel="best accuracy so far (%)")
        left.set_title(plain(group), loc="left")
        by_epochs: list[Curve] = []
        by_minutes: list[Curve] = []
        for i in rows:
            cells, label = table.cells[i], table.rows[i].label
            measured, timed, paper = Points(), Points(), Points()
            for x, j in accuracy:
                cell, time = cells[j], cells[minutes[x]].mean if x in minutes else None
                if cell.mean is not None:
                    measured.append((x, max([cell.mean, *(y for _, y in measured)])))
                    timed += [] if time is None else [(time, measured[-1][1])]
                if cell.published:
                    paper.append((x, max([cell.published.mean, *(y for _, y in paper)])))
            by_epochs.append((label, measured, [], paper))
            by_minutes.append((label, timed, [], []))
        ends = [(left, _draw_curves(left, by_epochs)), (right, _draw_curves(right, by_minutes))]
        for ax, found in ends:  # only now, because labels fix the limits of the shared axis
            end_labels(ax, found)
    return figure


def _draw_curves(ax: "Axes", series: Iterable[Curve]) -> list[tuple[float, float, str, str]]:
    """Draw curves, and return the places of their labels: the end of the longer curve, ours if they tie."""
    ends = []
    for (label, measured, deviations, paper), color, marker in zip(series, cycle(COLORS), cycle(MARKERS)):
        if paper:
            ax.plot(*zip(*paper, strict=True), color=color, ls="--", lw=0.8, marker=marker, mfc="none", ms=4)
        if measured and deviations:
            x, y = zip(*measured, strict=True)
            ax.errorbar(x, y, yerr=deviations, color=color, marker=marker, ms=4, lw=1.5, capsize=2)
        elif measured:
            ax.plot(*zip(*measured, strict=True), color=color, lw=1.5, marker=marker, ms=4)
        if measured or paper:
            end = max([*measured[-1:], *paper[-1:]], key=lambda point: point[0])
            ends.append((*end, plain(label), color))
    return ends


def _panes(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple["Figure", Any]:
    """Return a figure and its grid of axes, without pyplot's global state and choice of backend."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def _places(names: Iterable[str]) -> Mapping[str, Sequence[int]]:
    """Return the indices of each name, with names in the order of their first occurrence."""
    found: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        found.setdefault(name, []).append(i)
    return found


DRAWERS = {"scatter": scatter, "curves": curves, "runtime": runtime}
