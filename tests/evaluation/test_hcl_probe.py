"""The HCL protocol: batch norm's statistics change while the layer learns, and are restored."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from intnacl.evaluation.features import changed, snapshot
from intnacl.evaluation.hcl_probe import HCL, evaluate
from intnacl.evaluation.probe import ProbeConfig
from mistakes import must_refuse

QUICK = ProbeConfig(epochs=3, batch_size=128, lr=1e-2, l2=1e-6)


def plain(images, step):
    return images.float() / 255


def test_only_batch_norm_is_in_train_mode_and_the_encoder_is_restored(encoder, data):
    before, seen = snapshot(encoder.train()), set()
    for part in encoder.body:
        part.register_forward_hook(lambda part, *_: seen.add((type(part), part.training)))
    classifier, figures = evaluate(encoder, *data, plain, QUICK)
    assert {kind for kind, training in seen if training} == {nn.BatchNorm2d}
    assert changed(before, encoder) == []
    assert not any(part.training for part in encoder.modules()), "it is part of an evaluated classifier"
    correct = (classifier(data[1][0] / 255).argmax(dim=1) == data[1][1]).sum().item()
    assert figures["accuracy_restored"] == pytest.approx(correct / 4, abs=0.26)
    assert figures["accuracy"] > 80
    assert len(figures["curve"]) == 3
    assert (HCL.epochs, HCL.batch_size, HCL.lr, HCL.l2) == (100, 512, 1e-3, 1e-6)


def test_statistics_adapt_to_the_images(encoder, data):
    """Wrong running statistics ruin a frozen encoder; under this protocol they are learned afresh."""
    encoder.body[1].running_mean += 5
    _, figures = evaluate(encoder, *data, plain, QUICK)
    assert figures["accuracy"] > figures["accuracy_restored"] + 20


def test_training_is_on_the_augmented_images_of_each_step(encoder, data):
    steps = []

    def black(images, step):
        assert images.dtype == torch.uint8
        assert images.shape == (128, 3, 8, 8)
        steps.append(step)
        return torch.zeros(images.shape)

    _, figures = evaluate(encoder, *data, black, QUICK)
    assert steps == list(range(3 * (1397 // 128)))
    assert figures["accuracy"] < 40


@pytest.mark.parametrize("other", [{"l2": 1.0}, {"lr": 1e-3}, {"seed": 1}])
def test_settings_change_the_figures(encoder, data, other):
    configs = (replace(QUICK, epochs=1, **settings) for settings in ({}, other))
    usual, changed = (evaluate(encoder, *data, plain, config)[0].linear.weight for config in configs)
    assert not torch.allclose(usual, changed, atol=1e-2)


@pytest.mark.parametrize("other", [{"normalize": True}, {"standardize": True}, {"solver": "lbfgs"}])
def test_unsupported_settings_are_refused(encoder, data, other):
    must_refuse(evaluate, encoder, *data, plain, replace(QUICK, **other), "unchanged features")
