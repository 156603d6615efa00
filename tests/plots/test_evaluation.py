"""The drawings show the figures they were given."""

import io
import sys
from itertools import combinations

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from digits_model import held_out, trained_model
from intnacl.attacks.named import named_attack
from intnacl.evaluation.robustness import examples
from intnacl.plots.evaluation import COLORS, draw_examples, draw_probe, draw_robustness


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=60)
    return buffer.getvalue()


def test_dollars_in_names_are_no_mathematics() -> None:
    images, labels = torch.zeros(1, 3, 4, 4), torch.zeros(1, dtype=torch.long)
    found = {"clean": images, "adversarial": images, "labels": labels}
    found |= {"predicted": labels, "predicted_adversarial": labels}
    assert png(draw_examples(found, ["$a_$"], title=""))
    assert png(draw_probe({"folder:$a_$": [50.0]}))


def test_names_are_in_fonts_that_have_their_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intnacl.plots.evaluation.families", lambda texts: [f"font of {texts[0]}"])
    images, labels = torch.zeros(1, 3, 4, 4), torch.zeros(1, dtype=torch.long)
    found = {"clean": images, "adversarial": images, "labels": labels}
    found |= {"predicted": labels, "predicted_adversarial": labels}
    assert draw_examples(found, ["蓝"], title="").axes[0].title.get_fontfamily() == ["font of 蓝"]
    (text,) = draw_probe({"folder:蓝": [50.0]}).axes[0].get_legend().get_texts()
    assert text.get_fontfamily() == [f"font of {text.get_text()}"]


def test_probe_curve_shows_every_epoch_and_names_best_and_last():
    figure = draw_probe({"simclr": [10.0, 30.0, 20.0], "intnacl": [15.0, 25.0, 40.0]})
    (axes,) = figure.axes
    lines = [line for line in axes.lines if len(line.get_xdata()) > 1]
    assert [list(line.get_ydata()) for line in lines] == [[10, 30, 20], [15, 25, 40]]
    assert [list(line.get_xdata()) for line in lines] == [[1, 2, 3], [1, 2, 3]]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels[0] == "simclr: last 20.00, best 30.00 (epoch 2)"
    assert png(figure).startswith(b"\x89PNG")


def test_probe_epochs_are_whole_numbers():
    (axes,) = draw_probe({"simclr": [float(i) for i in range(20)]}).axes
    assert all(tick == int(tick) for tick in axes.get_xticks())


def test_robustness_curve_starts_clean_and_is_sorted():
    rows = [
        {"name": name, "eps": eps, "accuracy": accuracy, "clean": 90.0, "images": 64}
        for name, eps, accuracy in [("fgsm", 0.02, 40.0), ("fgsm", 0.01, 60.0), ("pgd", 0.01, 55.0)]
    ]
    some = {"name": "autoattack", "eps": 0.01, "accuracy": 50.0, "clean": 87.5, "images": 8}
    figure = draw_robustness([*rows, some])
    fgsm, pgd, auto = figure.axes[0].lines
    assert list(auto.get_ydata()) == [87.5, 50]
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["FGSM", "PGD", "AutoAttack, 8 images"]
    assert list(fgsm.get_xdata()) == [0, 0.01, 0.02]
    assert list(fgsm.get_ydata()) == [90, 60, 40]
    assert list(pgd.get_ydata()) == [90, 55]
    assert fgsm.get_linestyle() != pgd.get_linestyle()
    assert png(figure).startswith(b"\x89PNG")


def test_examples_show_images_perturbation_and_predictions():
    images, labels = held_out(5)
    found = examples(trained_model(), images, labels, named_attack("fgsm", 0.2))
    assert (found["predicted_adversarial"] != labels).any()
    figure = draw_examples(found, [f"digit {i}" for i in range(10)], title="")
    assert len(figure.axes) == 15
    clean, perturbation, attacked = (figure.axes[row * 5] for row in range(3))
    shown = [torch.from_numpy(axes.images[0].get_array().data) for axes in (clean, perturbation, attacked)]
    torch.testing.assert_close(shown[0], found["clean"][0].permute(1, 2, 0))
    torch.testing.assert_close(shown[2], found["adversarial"][0].permute(1, 2, 0))
    assert shown[1].min() >= 0
    assert 0.9 < shown[1].max() <= 1
    assert perturbation.get_ylabel().startswith("perturbation")
    for axes, guess, label in zip(figure.axes[10:], found["predicted_adversarial"], labels, strict=True):
        assert axes.get_title() == f"digit {guess}" + "*" * bool(guess != label)
        assert (to_hex(axes.title.get_color()) == "#c00000") == bool(guess != label)
    assert png(figure).startswith(b"\x89PNG")


def test_no_perturbation_is_plain_grey():
    images, labels = held_out(2)
    figure = draw_examples(
        examples(trained_model(), images, labels, named_attack("fgsm", 0.0)), "0123456789", title=""
    )
    assert (figure.axes[2].images[0].get_array() == 0.5).all()
    assert png(figure)


@pytest.mark.parametrize("module", ["intnacl.plots.evaluation", "intnacl.evaluation.robustness"])
def test_import_needs_no_matplotlib(module):
    import subprocess

    heavy = "{'matplotlib', 'pyautoattack', 'sklearn'}"
    code = f"import sys; import {module}; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# What red-, green- and blue-blind eyes see, in linear RGB (Machado et al. 2009, severity 1).
EYES = {
    "all": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protan": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deutan": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritan": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]


def _lab(colour: str, eye: str) -> np.ndarray:
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = np.array(XYZ) @ np.clip(np.array(EYES[eye]) @ linear, 0, 1) / np.array([0.9505, 1, 1.089])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("eye", EYES)
def test_colours_differ_for_every_eye(eye: str) -> None:
    for a, b in combinations(COLORS, 2):
        assert np.linalg.norm(_lab(a, eye) - _lab(b, eye)) > 10, (a, b)
