"""The probe: its figures, its classifier, its settings, and what it refuses."""

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from intnacl.errors import InputError
from intnacl.evaluation import probe
from intnacl.evaluation.features import changed, extract, pixels, snapshot
from intnacl.evaluation.probe import Classifier, ProbeConfig, evaluate, fit
from mistakes import must_refuse, refused

QUICK = ProbeConfig(epochs=15, batch_size=64, lr=3e-3)


@pytest.fixture
def features(encoder, data):
    return [item for images, labels in data for item in (extract(encoder, images), labels)]


CONFIGS = [
    QUICK,
    replace(QUICK, standardize=True),
    replace(QUICK, lr=3e-2, normalize=True),
    replace(QUICK, normalize=True, standardize=True),
    ProbeConfig(solver="lbfgs", l2=1e-3),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_classifier_has_the_accuracy_it_reports(encoder, data, config):
    """The classifier, with standardisation folded in, has the accuracy that was reported."""
    before = snapshot(encoder)
    classifier, figures = evaluate(encoder.train(), *data, config)
    assert encoder.training is False  # part of an evaluated classifier now
    assert changed(before, encoder) == []
    for (images, labels), name in zip(data, ("train_accuracy", "accuracy"), strict=True):
        right = (classifier(pixels(images, "cpu")).argmax(dim=1) == labels).sum().item()
        assert figures[name] == pytest.approx(100 * right / len(labels), abs=0.26)  # one of 400 may tip over
    assert figures["accuracy"] > 85
    assert figures["classes"] == 10


def test_the_last_epoch_is_reported_and_the_best_separately(features):
    _, figures = fit(*features, replace(QUICK, epochs=30, batch_size=256, lr=1e-3))
    curve, best = figures["curve"], figures["best_epoch"]
    assert len(curve) == 30
    assert curve[0] < curve[-1] - 10
    assert figures["accuracy"] == curve[-1]
    assert figures["best_accuracy"] == max(curve) == curve[best - 1]
    assert max(curve) not in curve[: best - 1]


def test_seed_decides_everything(features):
    layers = [fit(*features, ProbeConfig(epochs=2, seed=seed))[0].weight for seed in (0, 0, 1)]
    assert torch.equal(layers[0], layers[1])
    assert not torch.equal(layers[0], layers[2])
    torch.manual_seed(5)  # the global generator is neither used nor moved
    expected = torch.rand(3)
    torch.manual_seed(5)
    fit(*features, ProbeConfig(epochs=1))
    assert torch.equal(torch.rand(3), expected)


def test_standardizing_makes_units_irrelevant_and_is_folded_in_at_full_precision(features, monkeypatch):
    seen, real, precision = [], probe.as_linear, torch.get_float32_matmul_precision
    monkeypatch.setattr(probe, "as_linear", lambda *given: seen.append(precision()) or real(*given))
    train, labels, test, test_labels = features
    scale, before = torch.logspace(-2, 2, train.shape[1]), precision()
    config = ProbeConfig(epochs=5, lr=1e-2, standardize=True)
    torch.set_float32_matmul_precision("high")
    try:
        plain, _ = fit(*features, config)
        scaled, _ = fit(train * scale + 3, labels, test * scale + 3, test_labels, config)
    finally:
        torch.set_float32_matmul_precision(before)
    assert set(seen) == {"highest"}
    agreement = (plain(test).argmax(dim=1) == scaled(test * scale + 3).argmax(dim=1)).float().mean()
    assert agreement > 0.99


def test_normalizing_makes_the_length_of_features_irrelevant(features):
    train, labels, test, test_labels = features
    config, lengths = ProbeConfig(epochs=5, lr=1e-2, normalize=True), torch.logspace(-2, 2, len(train))
    plain, raw = (fit(*features, one)[0].weight for one in (config, replace(config, normalize=False)))
    scaled = fit(train * lengths[:, None], labels, 3 * test, test_labels, config)[0].weight
    torch.testing.assert_close(plain, scaled, rtol=1e-2, atol=1e-3)
    assert not torch.allclose(plain, raw, atol=1e-2)


@pytest.mark.parametrize("solver", ["adam", "lbfgs"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_features_of_half_precision_are_probed_in_float32(features, dtype, solver):
    config = ProbeConfig(solver=solver, epochs=5, max_iter=5)
    half = [item.to(dtype) if item.is_floating_point() else item for item in features]
    wide = [item.float() if item.is_floating_point() else item for item in half]
    (linear, found), (expected, figures) = fit(*half, config), fit(*wide, config)
    assert linear.weight.dtype == torch.float32
    assert torch.equal(linear.weight, expected.weight)
    assert found == figures
    assert Classifier(nn.Flatten(), linear)(half[2][:3]).dtype == torch.float32


@pytest.mark.parametrize("config", [QUICK, ProbeConfig(solver="lbfgs", max_iter=20, l2=1e-3)])
def test_each_pass_is_called_for_every_pass_over_the_features(features, config):
    calls = []
    fit(*features, config, each_pass=lambda: calls.append(1))
    assert (15 if config == QUICK else 20) <= len(calls) <= config.passes


def test_a_class_that_has_no_training_samples_has_its_logit(features):
    train, labels, test, test_labels = features
    linear, figures = fit(train[labels < 9], labels[labels < 9], test, test_labels, ProbeConfig(epochs=1))
    assert figures["classes"] == linear.out_features == 10


def test_defaults_are_those_of_the_reference():
    config = ProbeConfig()
    assert (config.solver, config.epochs, config.batch_size, config.lr) == ("adam", 1000, 256, 3e-4)
    assert (config.l2, config.normalize, config.standardize) == (0, False, False)


def test_bad_data_are_errors(encoder, data, features):
    (images, labels), test = data
    must_refuse(evaluate, encoder, (images, torch.full_like(labels, -1)), test, "unlabelled")
    with pytest.raises(InputError, match=r"\(3, 8, 8\) and \(3, 4, 4\)"):
        evaluate(encoder, (images, labels), (test[0][..., :4, :4], test[1]))
    with pytest.raises(InputError, match=r"diverged at lr=1e\+20: lower it"):
        fit(features[0] * 1e25, labels, features[2] * 1e25, test[1], ProbeConfig(epochs=2, lr=1e20))
    with pytest.raises(InputError, match=r"lr=1e\+37 must be a number above 0, up to 1e20"):
        ProbeConfig(lr=1e37)  # before any training
    features[0][5, 5] = torch.nan
    must_refuse(fit, *features, "nan")


COUNTS = ([0, -1, 2**31, 2**64], "must be a whole number from 1 to")
RANGES = {
    "solver": (["lbgfs"], "did you mean 'lbfgs'"),
    **dict.fromkeys(("epochs", "batch_size", "max_iter"), COUNTS),
    "seed": ([2**64], "is out of range"),
    "lr": ([0.0, -1.0, float("nan"), float("inf"), 1e300], "must be a number above 0"),
    "l2": ([-1.0, float("nan"), float("inf"), 1e300], "must be"),
}
test_settings_out_of_range_are_named = refused(
    lambda name, value: ProbeConfig(**{name: value}),
    *(
        (name, value, rf"{name}={re.escape(repr(value))}.*{message}")
        for name, (values, message) in RANGES.items()
        for value in values
    ),
)
