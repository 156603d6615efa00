"""Figures of the report: direct labels instead of legends, colours that colour-blind readers tell apart.

Measured values are filled, published ones hollow or dashed, in the same colour. In the SVG, text and axes
take the colour of the page around them, so that it can be light or dark.
"""

import io
from collections.abc import Sequence
from functools import partial
from typing import Any

from intnacl.paper.cells import Cell, View
from intnacl.plots.drawings import INKED, inline_svg
from intnacl.plots.evaluation import COLORS, MARKERS
from intnacl.plots.labels import end_labels

Points = list[tuple[float, float]]
LONGEST = 40  # characters of a label
STYLE: Any = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 9,
    **dict.fromkeys(INKED, "#222222"),
}  # fmt: skip


def draw(view: View) -> tuple[str, bytes]:
    """The figure of a table, as SVG for any page and as PNG on white."""
    import matplotlib as mpl

    make, png = partial(_figure, view), io.BytesIO()
    with mpl.rc_context(STYLE):
        svg = inline_svg(make, view.title, view.key)
        make().savefig(png, format="png", dpi=160, facecolor="white")
    return svg, png.getvalue()


def _figure(view: View) -> Any:
    figure = DRAWERS[str(view.figure)](view)
    for ax in figure.axes:
        if not ax.has_data():  # its scale would run from 0 to 1, which means nothing
            ax.tick_params(left=False, bottom=False, labelleft=False, labelbottom=False)
            ax.text(0.5, 0.5, "not measured yet", ha="center", va="center", transform=ax.transAxes)
    return figure


def plain(text: str) -> str:
    """A label without the meaning that $ has for matplotlib, and no longer than there is room for."""
    short = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return short.replace("$", r"\$")


def _panes(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Any, Any]:
    """A figure and its grid of axes, without pyplot: nothing is kept, and the program's backend stays."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def scatter(view: View) -> Any:
    """A panel for each pair of columns: the second against the first, a labelled point a row."""
    panels = _panels(view.columns)
    figure, axes = _panes(1, len(panels), (4.6 * len(panels), 3.8))
    for ax, (title, (i, j, *_)) in zip(axes[0], panels.items(), strict=True):
        points = []
        for k, row in enumerate(view.rows):
            x, y = view.cells[k][i], view.cells[k][j]
            colour, marker = COLORS[k % len(COLORS)], MARKERS[k % len(MARKERS)]
            _published_point(ax, x, y, colour, marker)
            if x.mean is not None and y.mean is not None:
                ax.errorbar(
                    x.mean, y.mean, xerr=x.sd, yerr=y.sd, color=colour, marker=marker, capsize=2, lw=1
                )
                points.append((x.mean, y.mean, plain(row["label"]), colour))
            elif x.published and y.published:
                points.append((x.published.mean, y.published.mean, f"{plain(row['label'])}, paper", colour))
        ax.set(xlabel=_axis(view.columns[i]), ylabel=_axis(view.columns[j]))
        ax.set_title(plain(title), loc="left")
        end_labels(ax, points, right=ax.get_xlim()[1])
    return figure


def _axis(column: dict[str, Any]) -> str:
    """A column's label, with its unit where that is not in it."""
    return plain(column["label"]) + ("" if column["metric"] == "minutes" else " (%)")


def _published_point(ax: Any, x: Cell, y: Cell, colour: str, marker: str) -> None:
    if x.published and y.published:
        ax.plot(x.published.mean, y.published.mean, marker=marker, mfc="none", color=colour, lw=0, alpha=0.8)
        if x.mean is not None and y.mean is not None:
            ax.plot([x.mean, x.published.mean], [y.mean, y.published.mean], color=colour, lw=0.6, ls=":")


def curves(view: View) -> Any:
    """A panel for each group of rows and panel of columns: a curve a row over the columns' x."""
    groups, panels = _groups(view.rows), _panels(view.columns)
    size = (3.9 * max(len(panels), 1.4), 3.0 * max(len(groups), 1.15))
    figure, axes = _panes(len(groups), len(panels), size)
    for line, (group, rows) in zip(axes, groups.items(), strict=True):
        for ax, (panel, columns) in zip(line, panels.items(), strict=True):
            xs = [view.columns[j]["x"] for j in columns]
            series = [(view.rows[i], [view.cells[i][j] for j in columns]) for i in rows]
            _curves(ax, xs, series)
            ax.set_title(plain(" · ".join(part for part in (group, panel) if part)), loc="left")
            timed = all(view.columns[j]["metric"] == "minutes" for j in columns)
            ylabel = "minutes of training" if timed else "accuracy (%)"
            ax.set(xlabel=plain(view.x_label), ylabel=ylabel)
            _mark_x(ax, xs)
    return figure


def _curves(ax: Any, xs: Sequence[float], series: list[tuple[dict[str, Any], list[Cell]]]) -> None:
    ends = []
    for k, (row, cells) in enumerate(series):
        colour, marker = COLORS[k % len(COLORS)], MARKERS[k % len(MARKERS)]
        known = [(x, c.mean, c.sd or 0.0) for x, c in zip(xs, cells, strict=True) if c.mean is not None]
        paper = [(x, c.published.mean) for x, c in zip(xs, cells, strict=True) if c.published]
        if paper:
            ax.plot(*zip(*paper, strict=True), color=colour, ls="--", lw=0.8, marker=marker, mfc="none", ms=4)
        if known:
            x, y, sd = zip(*known, strict=True)
            ax.errorbar(x, y, yerr=sd, color=colour, marker=marker, ms=4, lw=1.5, capsize=2)
        if known or paper:
            ends.append((*_end([(x, y) for x, y, _ in known], paper), plain(row["label"]), colour))
    end_labels(ax, ends)


def runtime(view: View) -> Any:
    """Best accuracy so far over epochs, and over the measured minutes of training."""
    groups = _groups(view.rows)
    accuracy = [j for j, column in enumerate(view.columns) if column["metric"] == "clean"]
    minutes = {c["x"]: j for j, c in enumerate(view.columns) if c["metric"] == "minutes"}
    size = (9.2, 3.2 * max(len(groups), 1.15))
    figure, axes = _panes(len(groups), 2, size, sharey="row")
    for (left, right), (group, rows) in zip(axes, groups.items(), strict=True):
        for ax, label in ((left, view.x_label), (right, "minutes of training, as measured")):
            ax.set(xlabel=plain(label), ylabel="best accuracy so far (%)")
        left.set_title(plain(group), loc="left")
        series = [_best_so_far(view, i, accuracy, minutes) for i in rows]
        by_epochs = [(label, [(x, y) for x, _, y in line], paper) for label, line, paper in series]
        by_minutes: list[tuple[str, Points, Points]] = [
            (label, [(t, y) for _, t, y in line if t is not None], []) for label, line, _ in series
        ]
        ends = [_best_curves(left, by_epochs), _best_curves(right, by_minutes)]
        for ax, found in zip((left, right), ends, strict=True):  # labels fix the axes, which both share
            end_labels(ax, found)
    return figure


def _best_so_far(
    view: View, i: int, accuracy: list[int], minutes: dict[float, int]
) -> tuple[str, list[tuple[float, float | None, float]], list[tuple[float, float]]]:
    measured: list[tuple[float, float | None, float]] = []
    paper: list[tuple[float, float]] = []
    for j in accuracy:
        x, cell = view.columns[j]["x"], view.cells[i][j]
        if cell.mean is not None:
            time = view.cells[i][minutes[x]].mean if x in minutes else None
            measured.append((x, time, max([cell.mean, *(y for *_, y in measured)])))
        if cell.published:
            paper.append((x, max([cell.published.mean, *(y for _, y in paper)])))
    return plain(view.rows[i]["label"]), measured, paper


def _best_curves(ax: Any, series: list[tuple[str, Points, Points]]) -> list[tuple[float, float, str, str]]:
    """Draw (label, measured, published) curves; returns where their labels belong."""
    ends = []
    for k, (label, measured, paper) in enumerate(series):
        colour, marker = COLORS[k % len(COLORS)], MARKERS[k % len(MARKERS)]
        if paper:
            ax.plot(*zip(*paper, strict=True), color=colour, ls="--", lw=0.8, marker=marker, mfc="none", ms=4)
        if measured:
            ax.plot(*zip(*measured, strict=True), color=colour, lw=1.5, marker=marker, ms=4)
        if measured or paper:
            ends.append((*_end(measured, paper), label, colour))
    return ends


def _end(measured: Points, paper: Points) -> tuple[float, float]:
    """Where a label belongs: at the end of what reaches further, the measured curve if both do."""
    return max([*measured[-1:], *paper[-1:]], key=lambda point: point[0])


def _mark_x(ax: Any, xs: Sequence[float]) -> None:
    """Ticks at the measured places; a logarithmic axis where they grow by factors."""
    if len(xs) > 2 and min(xs) > 0 and max(xs) / min(xs) >= 8:
        ax.set_xscale("log")
    ax.set_xticks(xs, [f"{x:g}" for x in xs])
    ax.minorticks_off()


def _panels(columns: Sequence[dict[str, Any]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for j, column in enumerate(columns):
        found.setdefault(column["panel"], []).append(j)
    return found


def _groups(rows: Sequence[dict[str, Any]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        found.setdefault(row["group"], []).append(i)
    return found


DRAWERS = {"scatter": scatter, "curves": curves, "runtime": runtime}
