"""AutoAttack: the reference's verdicts, whatever the batches, and clear errors where it cannot run."""

import logging
import sys
import time
import warnings
from copy import deepcopy

import pytest
import torch
from torch import nn

from digits_model import digits, held_out, trained_model
from intnacl.attacks import pgd
from intnacl.attacks.autoattack import STAGES, autoattack
from intnacl.attacks.fab import shortest_move
from intnacl.errors import InputError

EPS = 0.05


@pytest.fixture
def batch():
    images, labels = held_out(20)
    return images / 255, labels


def right(model, x, y):
    with torch.no_grad():
        return model(x).argmax(dim=1) == y


def reference(model, x, y, eps, batch_size):
    """Which images stay right under pyautoattack's standard version."""
    from pyautoattack import AutoAttack

    logger, trace, state = logging.getLogger("auto-attack"), sys.gettrace(), torch.get_rng_state()
    logger.setLevel(logging.ERROR)
    try:
        attack = AutoAttack(model, norm="Linf", eps=eps, version="standard", seed=0)
        return right(model, attack.run_standard_evaluation(x, y, batch_size=batch_size)[0], y)
    finally:
        sys.settrace(trace)
        torch.set_rng_state(state)


def test_verdicts_equal_the_references_and_images_stay_in_the_ball(batch):
    model, (x, y) = deepcopy(trained_model()), batch
    state = torch.get_rng_state()
    adversarial = autoattack(model, x, y, EPS)
    assert torch.equal(torch.get_rng_state(), state)
    assert (adversarial - x).abs().max() <= EPS + 1e-6
    assert 0 <= adversarial.min() <= adversarial.max() <= 1
    standing, clean = right(model, adversarial, y), right(model, x, y)
    assert standing.sum() <= right(model, pgd(model, x, y, EPS, EPS / 4, 20, 1), y).sum()
    assert 0 < standing.sum() < clean.sum()
    assert standing.sum() <= reference(model, x, y, EPS, 20).sum()
    assert torch.equal(adversarial[standing], x[standing])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_thousand_verdicts_equal_the_references():
    """`pytest -s` prints the table of docs/robustness.md."""
    images, labels = digits()
    x, y = images[797:] / 255, labels[797:]
    for eps, train_eps in ((0.05, 0.0), (0.1, 0.1)):
        model = trained_on_797(train_eps)
        found = {}
        for name, attack in (("pyautoattack", reference), ("intnacl", own)):
            for size in (250, 1000):
                begun = time.monotonic()
                found[name, size] = attack(model, x, y, eps, size), time.monotonic() - begun
        clean = int(right(model, x, y).sum())
        for (name, size), (standing, seconds) in found.items():
            print(
                f"\neps {eps}, {name}, batch {size}: {int(standing.sum())} of {clean}, {seconds:.0f} s",
                end="",
            )
        wanted = found["pyautoattack", 1000][0]
        for size in (250, 1000):
            assert int(found["intnacl", size][0].sum()) <= int(wanted.sum()) + 1
        assert torch.equal(found["intnacl", 250][0], found["intnacl", 1000][0])


def own(model, x, y, eps, batch_size):
    return right(model, autoattack(model, x, y, eps, batch_size=batch_size), y)


def trained_on_797(eps):
    """The tests' model, trained on the first 797 digits, under attack if eps is above 0."""
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a model attacked in train mode
        torch.manual_seed(0)
        model = nn.Sequential(deepcopy(trained_model()[0]), nn.Linear(64, 10))
        for part in model.modules():
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        images, labels = digits()
        for _ in range(15):
            for rows in torch.randperm(797).split(128):
                x, y = images[rows] / 255, labels[rows]
                x = pgd(model, x, y, eps, eps / 3, 5, 1, stop_when_fooled=False) if eps else x
                optimizer.zero_grad()
                nn.functional.cross_entropy(model.train()(x), y).backward()
                optimizer.step()
    return model.eval()


@pytest.mark.parametrize("stage", [name for name in STAGES if name != "fab-t"])
def test_an_images_random_draws_depend_only_on_its_place(batch, stage, monkeypatch):
    monkeypatch.setattr("intnacl.attacks.square.QUERIES", 100)
    model, (x, y) = trained_model(), batch
    whole = autoattack(model, x, y, 2 * EPS, stages=[stage])
    rows = torch.tensor([11, 3, 17, 5, 8])
    some = autoattack(model, x[rows], y[rows], 2 * EPS, stages=[stage], places=rows, batch_size=2)
    assert torch.allclose(some, whole[rows], atol=1e-5)
    assert not torch.equal(whole, x)


def test_the_shortest_move_to_a_plane_stays_in_the_box_and_has_no_shorter_one():
    torch.manual_seed(0)
    x, w = torch.rand(64, 3, 4, 4), torch.randn(64, 3, 4, 4)
    most = torch.where(w > 0, 1 - x, x)
    c = (w.abs() * most).sum((1, 2, 3)) * 0.3
    c[32:] *= 10  # which no move in the box reaches
    d = shortest_move(x, w, c)
    assert (x + d).min() >= -1e-6
    assert (x + d).max() <= 1 + 1e-6
    assert torch.allclose((w * d).sum((1, 2, 3))[:32], c[:32], atol=1e-3)
    assert torch.allclose(d.abs()[32:], most[32:], atol=1e-6)
    reach = d.abs().amax((1, 2, 3), keepdim=True)
    shorter = (w.abs() * torch.minimum(most, 0.999 * reach)).sum((1, 2, 3))
    assert (shorter < c).all()


def test_few_classes_use_every_wrong_class_and_too_few_are_an_error(batch):
    keep = batch[1] < 5
    x, y = (item[keep][:8] for item in batch)
    five = nn.Sequential(deepcopy(trained_model()[0]), nn.Linear(64, 5)).eval()
    with torch.no_grad():
        five[1].weight.copy_(trained_model()[1].weight[:5])
        five[1].bias.copy_(trained_model()[1].bias[:5])
    # At this radius nothing falls: all targeted attacks run, and none asks for a sixth class.
    autoattack(five, x[:1], five(x[:1]).argmax(dim=1), 1e-4, stages=["apgd-t", "fab-t"])
    assert right(five, autoattack(five, x, y, 0.3), y).sum() < right(five, x, y).sum()
    with pytest.raises(InputError, match="at least 4 classes, not 3"):
        autoattack(nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), x[:2], y[:2] % 3, 0.1)
