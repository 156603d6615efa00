"""Named rows of settings run the attack they say."""

import pytest
import torch

from digits_model import held_out, trained_model
from intnacl.attacks import fgsm, pgd
from intnacl.attacks import named as named_attacks
from intnacl.attacks.named import ATTACKS, AttackConfig, named_attack, run
from intnacl.errors import InputError


@pytest.fixture
def batch():
    images, labels = held_out(40)
    return images / 255, labels


def test_rows_hold_the_papers_and_the_tuned_numbers():
    rows = {name: named_attack(name, 0.002) for name in ("fgsm", "pgd", "pgd_tuned", "autoattack")}
    assert list(rows) == list(ATTACKS)
    assert (rows["pgd"].step_size, rows["pgd"].steps, rows["pgd"].restarts) == (0.01, 10, 2)
    assert (rows["pgd_tuned"].step_size, rows["pgd_tuned"].steps, rows["pgd_tuned"].restarts) == (
        0.0005,
        40,
        1,
    )
    assert (rows["fgsm"].step_size, rows["fgsm"].steps, rows["fgsm"].restarts) == (0.002, 1, 1)
    assert rows["autoattack"].steps is None
    assert all(row.name == name and row.eps == 0.002 for name, row in rows.items())


def test_run_is_the_attack(batch):
    model, generator = trained_model(), torch.Generator()
    assert torch.equal(run(named_attack("fgsm", 0.05), model, *batch), fgsm(model, *batch, 0.05))
    unclamped = run(named_attack("fgsm", 0.05, clamp=False), model, *batch)
    assert torch.equal(unclamped, fgsm(model, *batch, 0.05, clamp=False))
    ours = run(named_attack("pgd", 0.05), model, *batch, generator.manual_seed(1))
    expected = pgd(model, *batch, 0.05, 0.01, 10, 2, generator=generator.manual_seed(1))
    assert torch.equal(ours, expected)
    start = run(named_attack("pgd", 0.05, random_start=False), model, *batch)
    assert torch.equal(start, pgd(model, *batch, 0.05, 0.01, 10, 2, random_start=False))


def test_autoattack_gets_its_settings(batch, monkeypatch):
    def autoattack(model, x, y, eps, *, seed, batch_size):
        return eps, seed, batch_size

    monkeypatch.setattr(named_attacks, "autoattack", autoattack)
    assert run(named_attack("autoattack", 0.1, seed=3), trained_model(), *batch, None, 7) == (0.1, 3, 7)


def test_overrides_replace_single_settings():
    assert named_attack("pgd", 0.1, restarts=7, name="pgd7") == AttackConfig(
        name="pgd7", method="pgd", eps=0.1, steps=10, step_size=0.01, restarts=7, random_start=True
    )


def test_mistakes_are_errors():
    with pytest.raises(InputError, match="did you mean 'pgd_tuned'"):
        named_attack("pgd_tune", 0.1)
    with pytest.raises(InputError, match="eps=2"):
        named_attack("fgsm", 2)
    for name in ("pgd", "pgd_tuned"):
        with pytest.raises(InputError, match=r"eps='8/255' is a text: .* without quotes"):
            named_attack(name, "8/255")
    with pytest.raises(InputError, match="images=0"):
        named_attack("fgsm", 0.1, images=0)
    with pytest.raises(InputError, match="method='cw'"):
        AttackConfig(name="cw", method="cw", eps=0.1)
    with pytest.raises(InputError, match="needs steps, step_size and restarts"):
        AttackConfig(name="mine", method="pgd", eps=0.1)
