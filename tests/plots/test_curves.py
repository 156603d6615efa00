"""Learning curves: drawn from the log alone."""

import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from intnacl.plots.curves import draw_curves


def draw(folder: Path, rows: list[dict], monkeypatch: pytest.MonkeyPatch) -> Figure:
    kept = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda f, *a, **k: (kept.append(f), save(f, *a, **k)))
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    draw_curves(folder / "log.jsonl", folder / "curves.png")
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    return kept[0]


def rows(**terms: float) -> list[dict]:
    shared = {"lr": 0.1, "images_per_s": 1.0, "seconds": 1.0}
    return [{"epoch": e, "step": e, **{k: v / e for k, v in terms.items()}, **shared} for e in (1, 2, 3)]


def test_terms_and_accuracy_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = rows(nacl=4.0, robust=2.0, loss=6.0)
    log[1]["knn"], log[2]["knn"] = 50.0, 60.0
    left, right = draw(tmp_path, log, monkeypatch).axes
    lines = {line.get_label(): list(line.get_ydata()) for line in left.lines}
    assert lines == {"nacl": [4.0, 2.0, 4 / 3], "robust": [2.0, 1.0, 2 / 3], "loss": [6.0, 3.0, 2.0]}
    assert list(right.lines[0].get_xdata()) == [2, 3]
    assert list(right.lines[0].get_ydata()) == [50.0, 60.0]


def test_unused_terms_and_an_accuracy_that_was_not_watched_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (axis,) = draw(tmp_path, rows(nacl=4.0, robust=0.0, loss=4.0), monkeypatch).axes
    assert [line.get_label() for line in axis.lines] == ["loss"]  # the only term would lie below it, unseen


def test_an_accuracy_of_zero_is_a_curve_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, right = draw(tmp_path, rows(knn=0.0, loss=4.0), monkeypatch).axes
    assert [line.get_label() for line in right.lines] == ["kNN, test images"]


def test_accuracies_in_percent_do_not_share_the_axis_of_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = draw(tmp_path, rows(accuracy=90.0, loss=2.0), monkeypatch).axes
    assert [line.get_label() for line in left.lines] == ["loss"]
    assert [line.get_label() for line in right.lines] == ["accuracy, training"]


def test_a_single_epoch_is_not_cut_into_fractions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for axis in draw(tmp_path, rows(accuracy=90.0, loss=2.0)[:1], monkeypatch).axes:
        low, high = axis.get_xlim()
        assert [tick for tick in axis.get_xticks() if low <= tick <= high] == [1]


def test_a_single_epoch_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for axis in draw(tmp_path, rows(accuracy=90.0, loss=2.0)[:1], monkeypatch).axes:
        assert all(line.get_marker() == "o" for line in axis.lines)  # a line of one point draws nothing
