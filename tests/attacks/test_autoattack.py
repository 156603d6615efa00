"""AutoAttack behind one function: strong, contained, and clear when it cannot run."""

import logging
import sys
from copy import deepcopy

import pytest
import torch
from torch import nn

from digits_model import held_out, trained_model
from intnacl.attacks import pgd
from intnacl.attacks.autoattack import autoattack
from intnacl.errors import InputError

EPS = 0.05


@pytest.fixture
def batch():
    pytest.importorskip("pyautoattack")
    images, labels = held_out(20)
    return images / 255, labels


def right(model, x, y):
    with torch.no_grad():
        return model(x).argmax(dim=1) == y


def test_autoattack_is_at_least_as_strong_as_pgd_and_stays_in_the_ball(batch):
    model, (x, y) = deepcopy(trained_model()), batch
    adversarial = autoattack(model, x, y, EPS)
    assert (adversarial - x).abs().max() <= EPS + 1e-6
    assert 0 <= adversarial.min() <= adversarial.max() <= 1
    standing, clean = right(model, adversarial, y), right(model, x, y)
    assert standing.sum() <= right(model, pgd(model, x, y, EPS, EPS / 4, 20, 1), y).sum() + 1
    assert standing.sum() < clean.sum()
    assert not (standing & ~clean).any()


def test_nothing_global_changes(batch):
    state, trace, level = torch.get_rng_state(), sys.gettrace(), logging.getLogger("auto-attack").level
    autoattack(deepcopy(trained_model()), *(item[:4] for item in batch), 0.5)
    assert torch.equal(torch.get_rng_state(), state)
    assert sys.gettrace() is trace
    assert logging.getLogger("auto-attack").level == level


def test_few_classes_use_every_wrong_class_and_too_few_are_an_error(batch):
    keep = batch[1] < 5
    x, y = (item[keep][:8] for item in batch)
    five = nn.Sequential(deepcopy(trained_model()[0]), nn.Linear(64, 5)).eval()
    with torch.no_grad():
        five[1].weight.copy_(trained_model()[1].weight[:5])
        five[1].bias.copy_(trained_model()[1].bias[:5])
    # At this radius nothing falls: all targeted attacks run, and none asks for a sixth class.
    autoattack(five, x[:1], five(x[:1]).argmax(dim=1), 1e-4)
    assert right(five, autoattack(five, x, y, 0.3), y).sum() < right(five, x, y).sum()
    with pytest.raises(InputError, match="at least 4 classes, these are 3"):
        autoattack(nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), x[:2], y[:2] % 3, 0.1)


def test_without_the_package_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    with pytest.raises(InputError, match=r"pip install '/.*\[autoattack\]'"):
        autoattack(trained_model(), torch.zeros(1, 3, 8, 8), torch.zeros(1).long(), 0.1)
