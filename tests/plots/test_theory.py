"""The figures show the measured values."""

import pytest
from matplotlib.figure import Figure

from intnacl.plots.theory import (
    draw_bounds,
    draw_complexity,
    draw_deviation,
    draw_lemma,
    draw_spaces,
    save_theory,
)
from intnacl.theory.comparison import ComparisonConfig, learn_spaces, load_table, measure
from intnacl.theory.sweep import SweepConfig, sweep


@pytest.fixture(scope="module")
def measured() -> dict:
    return sweep(SweepConfig(draws=50, points=4))


def test_bounds_are_drawn_the_same_twice(measured, tmp_path):
    for name in ("one.png", "two.png"):
        save_theory(draw_bounds(measured), tmp_path / "new" / name)
    assert (tmp_path / "new" / "one.png").read_bytes() == (tmp_path / "new" / "two.png").read_bytes()


def test_lines_hold_the_numbers_and_relative_complexity_starts_at_one(measured):
    deviation, complexity = Figure().subplots(2)
    draw_deviation(deviation, measured["n"], "n")
    lines = {line.get_label(): list(line.get_ydata()) for line in deviation.get_lines()}
    assert lines["Theorem B.1"] == [row["paper"] for row in measured["n"]]
    assert lines["measured mean Δ, g1"] == [row["spread"] for row in measured["n"]]
    draw_complexity(complexity, measured["complexity"])
    assert [bars.get_label() for bars in complexity.containers] == ["measured, M·N·G", "measured, N·G"]
    for bars in complexity.containers:
        assert bars.lines[0].get_ydata()[0] == pytest.approx(1)


def test_lemma_shows_both_supervised_losses(measured):
    figure = Figure(figsize=(3.2, 3.4))
    axes = figure.subplots()
    draw_lemma(axes, measured["lemma"]["two classes"], "two classes", fontsize=6)
    figure.draw_without_rendering()
    (_, nought), (_, legend) = axes.transData.transform((1, 0)), axes.get_legend().get_window_extent().p0
    assert nought < legend, "the legend covers L_Sup, which is 0 here"
    assert {"L_Sup", "L_Sup^μ"} < {text.get_text() for text in axes.get_legend().get_texts()}


@pytest.mark.parametrize("components", [1, 2, 3])
def test_spaces_of_any_dimension_are_drawn(components):
    X, y = load_table("iris")
    spaces = learn_spaces(X, y, ComparisonConfig(dataset="iris", n_components=components, max_iter=2))
    panels = draw_spaces(spaces, measure(spaces, y), y).axes
    assert [len(axes.collections[0].get_offsets()) for axes in panels] == [len(X)] * len(spaces)
    assert ("by PCA" in panels[-1].get_title()) == (components > 2)
