"""Recorded figures of one small encoder, for each evaluator.

If they move, either the change is a mistake, or its evaluator's FORMAT is raised in the same commit, and the
new figures are recorded here.
"""

import pytest
import torch

from digits_model import SmallNet, digits
from intnacl.attacks import autoattack
from intnacl.attacks.named import named_attack
from intnacl.evaluation import adversarial_probe, corruptions, hcl_probe, knn, probe, robustness
from intnacl.evaluation.adversarial_probe import AlfConfig
from intnacl.evaluation.probe import ProbeConfig

IMAGES, LABELS = digits()
TRAIN, TEST = (IMAGES[:600], LABELS[:600]), (IMAGES[-200:], LABELS[-200:])
LBFGS = ProbeConfig(solver="lbfgs", l2=1e-3, max_iter=30, standardize=True)


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    return SmallNet().eval()


def near(accuracy: float | list[float]) -> object:
    """One of the images may be classified differently on another processor."""
    return pytest.approx(accuracy, abs=0.7)


def test_probe(encoder):
    assert probe.FORMAT == 1
    _, figures = probe.evaluate(encoder, TRAIN, TEST, ProbeConfig(epochs=3, lr=0.01))
    assert len(figures.pop("confusion")) == 10
    best = {"best_accuracy": near(21.0), "best_epoch": 3, "curve": near([13.5, 14.0, 21.0])}
    assert figures == {"accuracy": near(21.0), "train_accuracy": near(29.33), "classes": 10, **best}
    _, figures = probe.evaluate(encoder, TRAIN, TEST, LBFGS)
    counts = figures.pop("confusion")
    assert [counts[i][i] for i in range(10)] == pytest.approx([18, 15, 17, 16, 19, 19, 22, 17, 14, 19], abs=1)
    assert figures == {"accuracy": near(88.0), "train_accuracy": near(100.0), "classes": 10}


def test_hcl_probe(encoder):
    def darken(images, step):
        return images.float() / 255 * (1 - 0.1 * (step % 2))

    assert hcl_probe.FORMAT == 1
    config = ProbeConfig(epochs=3, batch_size=100, lr=0.01)
    _, figures = hcl_probe.evaluate(encoder, TRAIN, TEST, darken, config)
    best = {"best_accuracy": near(68.5), "best_epoch": 3, "curve": near([19.5, 47.0, 68.5])}
    assert figures == {"accuracy": near(68.5), "accuracy_restored": near(30.0), "classes": 10, **best}


def test_knn(encoder):
    assert knn.FORMAT == 1
    figures = knn.evaluate(encoder, TRAIN, TEST, knn.suited(600, 10))
    assert figures == {"accuracy": near(82.0), "k": 60, "classes": 10}


def test_robustness(encoder):
    assert robustness.FORMAT == 1
    classifier, _ = probe.evaluate(encoder, TRAIN, TEST, LBFGS)
    attacks = [named_attack("fgsm", 0.02), named_attack("pgd", 0.02, images=150)]
    figures = robustness.evaluate(classifier, *TEST, [*attacks, named_attack("pgd_tuned", 0.05, steps=5)])
    rows = [
        ("fgsm", 0.02, 1, 0.02, 1, 200, near(56.5), near(88.0)),
        ("pgd", 0.02, 10, 0.01, 2, 150, near(51.33), near(87.33)),
        ("pgd_tuned", 0.05, 5, 0.0125, 1, 200, near(13.5), near(88.0)),
        ("worst_case", 0.02, None, None, None, 150, near(51.33), near(87.33)),
        ("worst_case", 0.05, None, None, None, 200, near(13.5), near(88.0)),
    ]
    found = [*figures.pop("attacks"), *figures.pop("worst_case")]
    assert [tuple(row.values()) for row in found] == rows
    assert figures == {"clean": near(88.0), "images": 200, "zero_gradients": 0, "warnings": []}


def test_adversarial_probe(encoder):
    assert adversarial_probe.FORMAT == 1
    config = AlfConfig(epochs=5, batch_size=100, lr=0.5, steps=2)
    _, figures = adversarial_probe.evaluate(encoder, TRAIN, TEST, lambda x, step: x.float() / 255, config)
    assert figures == {"accuracy": near(26.5), "train_accuracy": near(26.33), "classes": 10}


def test_corruptions(encoder):
    assert corruptions.FORMAT == 1
    classifier, _ = probe.evaluate(encoder, TRAIN, TEST, LBFGS)
    for name, mean, by_severity in (
        ("contrast", 53.0, [80.5, 60.0, 53.0, 42.5, 29.0]),
        ("gaussian_noise", 83.8, [86.0, 86.0, 86.5, 79.5, 81.0]),
    ):
        figures = corruptions.evaluate(classifier, *TEST, name)
        assert figures == {"accuracy": near(mean), "by_severity": near(by_severity), "clean": near(88.0)}


def test_autoattack(encoder):
    """A few images under the first two of its attacks."""
    assert autoattack.FORMAT == 2
    classifier, _ = probe.evaluate(encoder, TRAIN, TEST, LBFGS)
    x, y = TEST[0][:60] / 255, TEST[1][:60]
    found = autoattack.autoattack(classifier, x, y, 0.02, stages=["apgd-ce", "apgd-t"])
    assert int((classifier(found).argmax(1) == y).sum()) == pytest.approx(28, abs=1)
