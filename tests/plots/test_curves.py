"""Curves show the given figures."""

import subprocess
import sys

import pytest
from matplotlib.axes import Axes

from intnacl.plots.curves import draw_comparison, draw_learning, draw_probe, draw_robustness


def records(epochs: int = 3, **terms: float) -> list[dict[str, float]]:
    shared = {"lr": 0.1, "images_per_s": 1.0, "seconds": 1.0}
    return [
        {"epoch": e, "step": e, **{k: v / e for k, v in terms.items()}, **shared}
        for e in range(1, epochs + 1)
    ]


def lines(axes: Axes) -> dict[str, list[tuple[float, float]]]:
    """Label -> points."""
    return {str(line.get_label()): [tuple(p) for p in line.get_xydata().tolist()] for line in axes.lines}


def test_learning_shows_the_terms_of_the_loss_beside_accuracies_in_percent():
    log = records(nacl=4.0, robust=2.0, loss=6.0)
    log[1]["knn"], log[2]["knn"] = 0.0, 60.0  # not measured after the first epoch
    left, right = draw_learning(log).axes
    nacl, robust, loss = ([(e, value / e) for e in (1, 2, 3)] for value in (4, 2, 6))
    assert lines(left) == {"nacl": nacl, "robust": robust, "loss": loss}
    assert lines(right) == {"kNN": [(2, 0), (3, 60)]}
    (alone,) = draw_learning(records(nacl=4.0, robust=0.0, loss=4.0)).axes
    assert list(lines(alone)) == ["loss"]  # its only term would be hidden behind it


def test_the_online_probe_is_drawn_with_the_accuracies_and_the_rank_in_its_own_panel():
    log = records(loss=6.0, probe_train=60.0)
    log[2] |= {"probe": 30.0, "rankme": 40.0}
    _, accuracies, rank = draw_learning(log).axes
    trained = [(1, 60), (2, 30), (3, 20)]
    assert lines(accuracies) == {"online probe, training views": trained, "online probe": [(3, 30)]}
    assert lines(rank) == {"RankMe": [(3, 40)]}
    assert [text.get_text() for text in rank.texts] == ["40.0"]


def test_a_single_epoch_is_one_visible_point_at_a_whole_number():
    panels = draw_learning(records(1, accuracy=90.0, loss=2.0)).axes
    assert list(lines(panels[1])) == ["accuracy, training"]
    for axes in panels:
        low, high = axes.get_xlim()
        assert [tick for tick in axes.get_xticks() if low <= tick <= high] == [1]
        assert all(line.get_marker() == "o" for line in axes.lines)


def test_probe_curves_show_every_epoch_and_name_best_and_last():
    (axes,) = draw_probe({"simclr": [10.0, 30.0, 20.0], "intnacl": [15.0, 25.0, 40.0]}).axes
    curves = [line.get_xydata().tolist() for line in axes.lines if len(line.get_xdata()) > 1]
    assert curves == [[[1, 10], [2, 30], [3, 20]], [[1, 15], [2, 25], [3, 40]]]
    first, _ = [text.get_text() for text in axes.get_legend().get_texts()]
    assert first == "simclr: last 20.00, best 30.00 (epoch 2)"
    (axes,) = draw_probe({"simclr": [float(i) for i in range(20)]}).axes
    assert all(tick == int(tick) for tick in axes.get_xticks())


def test_names_in_legends_are_not_parsed_as_formulas_and_use_fonts_that_have_their_characters(monkeypatch):
    monkeypatch.setattr("intnacl.plots.curves.font_families", lambda texts: [f"font of {texts[0]}"])
    (text,) = draw_probe({"folder:$a_$蓝": [50.0]}).axes[0].get_legend().get_texts()
    assert text.get_fontfamily() == [f"font of {text.get_text()}"]
    assert not text.get_parse_math()


def test_robustness_curves_start_at_the_clean_accuracy_and_are_sorted():
    rows = [
        {"name": name, "eps": eps, "accuracy": accuracy, "clean": 90.0, "images": 64}
        for name, eps, accuracy in [
            ("fgsm", 0.02, 40.0), ("fgsm", 0.01, 60.0), ("pgd", 0.01, 55.0), ("worst_case", 0.01, 54.0),
        ]
    ]  # fmt: skip
    some = {"name": "autoattack", "eps": 0.01, "accuracy": 50.0, "clean": 87.5, "images": 8}
    (axes,) = draw_robustness([*rows, some]).axes
    assert lines(axes) == {
        "FGSM": [(0, 90), (0.01, 60), (0.02, 40)],
        "PGD": [(0, 90), (0.01, 55)],
        "worst case": [(0, 90), (0.01, 54)],
        "AutoAttack, 8 images": [(0, 87.5), (0.01, 50)],
    }
    fgsm, pgd, worst, _ = axes.lines
    assert fgsm.get_linestyle() != pgd.get_linestyle()
    assert worst.get_zorder() < pgd.get_zorder()


def test_the_axis_labels_the_attacked_radii_without_overlap():
    radii = (0.004, 0.016, 8 / 255, 0.032)
    rows = [{"name": "fgsm", "eps": eps, "accuracy": 1.0, "clean": 90.0, "images": 4} for eps in radii]
    (axes,) = draw_robustness(rows).axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "0.004", "0.016", "8/255"]


def test_losses_are_compared_in_a_panel_for_each_attack():
    curves = {"a": [(0.0, 81.0, 1.0), (0.1, 40.0, 2.0)], "$b_": [(0.0, 81.2, 0.0), (0.1, 40.2, 0.0)]}
    figure = draw_comparison({"FGSM": curves, "PGD": {"a": curves["a"]}}, "from_$5_to_$10")
    left, right = figure.axes
    assert (left.get_title(), right.get_title()) == ("FGSM", "PGD")
    assert [bars.has_yerr for bars in left.containers] == [True, False]
    assert left.lines[0].get_xydata().tolist() == [[0, 81], [0.1, 40]]
    figure.draw_without_rendering()
    first, second = left.texts
    assert (first.get_text(), second.get_text()) == ("a", "$b_")
    assert not first.get_window_extent().overlaps(second.get_window_extent())


@pytest.mark.parametrize("module", ["intnacl.plots.curves", "intnacl.plots.gallery"])
def test_import_needs_no_matplotlib(module):
    heavy = "{'matplotlib', 'pyautoattack', 'sklearn'}"
    code = f"import sys; import {module}; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
