"""Named attacks equal the functions that they name, with the settings in stored measurements."""

import json
from dataclasses import replace

import pytest
import torch

from digits_model import held_out, trained_model
from intnacl.attacks import fgsm, pgd
from intnacl.attacks.named import ATTACK_NAMES, ATTACKS, FGSM, PGD, eps_text, named_attack
from mistakes import refused

# As they stand in result.json and in the file of a measurement.
RECORDED = """
{"name": "fgsm", "method": "fgsm", "eps": 0.03137254901960784, "steps": 1, "step_size": 0.03137254901960784, "restarts": 1, "random_start": false, "clamp": true, "images": 64, "seed": 0}
{"name": "pgd", "method": "pgd", "eps": 0.002, "steps": 10, "step_size": 0.01, "restarts": 2, "random_start": true, "clamp": true, "images": null, "seed": 0}
{"name": "pgd_tuned", "method": "pgd", "eps": 0.002, "steps": 40, "step_size": 0.0005, "restarts": 1, "random_start": true, "clamp": true, "images": null, "seed": 0}
{"name": "autoattack", "method": "autoattack", "eps": 0.002, "steps": null, "step_size": null, "restarts": null, "random_start": true, "clamp": true, "images": 1000, "seed": 0}
"""  # noqa: E501


@pytest.fixture
def batch():
    images, labels = held_out(40)
    return images / 255, labels


@pytest.mark.parametrize("line", RECORDED.strip().splitlines())
def test_settings_are_those_that_stored_measurements_hold(line):
    recorded = json.loads(line)
    attack = named_attack(recorded["name"], recorded["eps"], images=recorded["images"])
    assert json.dumps(attack.settings()) == line
    assert {**recorded, "seed": 3} == replace(attack, seed=3).settings()


def test_every_named_attack_has_its_name_a_printed_name_and_a_number_of_passes():
    attacks = {name: named_attack(name, 0.1) for name in ATTACKS}
    assert [attack.name for attack in attacks.values()] == list(ATTACKS)
    assert set(ATTACKS) < set(ATTACK_NAMES)
    assert [attack.passes for attack in attacks.values()] == [3, 23, 42, None]
    own = named_attack("pgd", 0.1, restarts=7, name="pgd7")
    assert own == PGD(name="pgd7", eps=0.1, steps=10, step_size=0.01, restarts=7) != attacks["pgd"]
    assert len({FGSM(eps=0.1), attacks["fgsm"], named_attack("fgsm", 0.2)}) == 2


def test_a_named_attack_is_the_function_with_these_settings(batch):
    model, generator = trained_model(), torch.Generator()
    for on in (True, False):
        ours = named_attack("fgsm", 0.05, clamp=on)(model, *batch, batch_size=7)
        assert torch.equal(ours, fgsm(model, *batch, 0.05, clamp=on))
        attack = named_attack("pgd", 0.05, random_start=on)
        ours = attack(model, *batch, generator=generator.manual_seed(1))
        settings = {"random_start": on, "generator": generator.manual_seed(1)}
        assert torch.equal(ours, pgd(model, *batch, 0.05, 0.01, 10, 2, **settings))


def test_autoattack_gets_its_settings(batch, monkeypatch):
    monkeypatch.setattr("intnacl.attacks.named.autoattack", lambda model, x, y, eps, **given: (eps, given))
    given = named_attack("autoattack", 0.1, seed=3)(trained_model(), *batch, batch_size=7)
    assert given == (0.1, {"seed": 3, "batch_size": 7})


test_mistakes_are_refused = refused(
    lambda name, eps, settings: named_attack(name, eps, **settings),
    ("pgd_tune", 0.1, {}, "did you mean 'pgd_tuned'"),
    ("fgsm", 2, {}, "eps=2"),
    *((name, "8/255", {}, "eps='8/255' is a string: .* without quotes") for name in ("pgd", "pgd_tuned")),
    ("fgsm", 0.1, {"images": 0}, "images=0"),
)


TEXTS = {
    **{8 / 255: "8/255", 1 / 255: "1/255", 8 / 255 / 4: "2/255", 51 / 255: "0.2", 1 / 300: "0.003333"},
    **{0.002: "0.002", 0.032: "0.032", 0.0314: "0.0314", 1.0: "1", 0.0: "0"},
}


def test_radii_in_grey_levels_are_shown_as_fractions():
    assert {eps: eps_text(eps) for eps in TEXTS} == TEXTS
