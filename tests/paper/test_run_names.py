"""Names of runs, and which settings make another run."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from grids import SMALL

from intnacl.paper import run_names as naming
from intnacl.paper.run_names import canonical, run_name, training_key
from intnacl.runs.config import to_dict
from intnacl.runs.resolve import resolve


def test_a_name_is_readable_and_ends_in_a_hash() -> None:
    config = canonical(resolve({"dataset": "cifar100", "seed": 3}, preset="intnacl"))
    assert re.fullmatch(r"cifar100-mixnca-g2-M5-lam0.5-alpha1-100epochs-seed3-[0-9a-f]{10}", run_name(config))


def test_a_name_holds_nothing_that_a_shell_or_a_path_reads() -> None:
    name = run_name(resolve({"dataset": "folder:/a b/../<x>;$(y)"}))
    assert re.fullmatch(r"[\w.-]+", name)


@pytest.mark.parametrize(
    ("key", "value", "same"),
    [
        ("train.compile", True, True), ("root", "/data", True), ("train.keep", 5, True),
        ("train.lr", 2e-3, False), ("seed", 1, False), ("probe.epochs", 5, False),
        ("evaluation.images", 5, False),
    ],
)  # fmt: skip
def test_the_hash_is_of_what_the_result_depends_on(key: str, value: object, same: bool) -> None:
    assert (run_name(resolve({key: value})) == run_name(resolve())) is same


def test_a_setting_that_a_later_version_adds_leaves_names_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = canonical(resolve({"dataset": "cifar100"}, preset="intnacl"))
    before, key = run_name(config), training_key(config)
    monkeypatch.setattr(naming, "to_dict", lambda config: to_dict(config) | {"loss.new": "usual"})
    naming._defaults.cache_clear()
    assert (run_name(config), training_key(config)) == (before, key)
    naming._defaults.cache_clear()


def test_names_know_when_a_default_changes() -> None:
    """If this fails: raise `naming.DEFAULTS`, and write defaults.json anew."""
    known = json.loads((Path(__file__).parent / "defaults.json").read_text())
    assert known["version"] == naming.DEFAULTS
    now = naming._defaults()
    assert {key: now.get(key) for key in known["defaults"]} == known["defaults"]


def test_the_papers_rate_is_in_no_name_and_that_of_another_optimiser_is() -> None:
    cifar = {"dataset": "cifar100"}
    assert run_name(resolve(cifar)) == run_name(resolve(cifar | {"train.lr": 3e-4}))
    sgd = cifar | {"train.optimizer": "sgd"}
    assert run_name(resolve(sgd)) == run_name(resolve(sgd | {"train.lr": 0.05}))
    assert run_name(resolve(sgd)) != run_name(resolve(sgd | {"train.lr": 3e-4}))


def test_the_hash_is_not_of_the_recipes_name() -> None:
    assert run_name(replace(resolve(), recipe="custom")) == run_name(resolve())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"loss.nacl": "mixnca", "loss.lam": 0.9}, {}),  # M = 1 has no mixed view
        ({"loss.lam": 0.9, "loss.num_positives": 2}, {"loss.num_positives": 2}),  # nor has NCA
        ({"loss.tau_plus": 0.1, "loss.beta": 2.0}, {}),  # g0 has neither
        ({"loss.negatives": "g1", "loss.beta": 2.0}, {"loss.negatives": "g1"}),
        ({"loss.weight": "one", "loss.detach_weight": True}, {}),  # alpha = 0 has no robust term
        ({"loss.alpha": 1.0, "loss.detach_weight": True}, {"loss.alpha": 1.0}),  # "relative" is a constant
        ({"loss.denominator": "MN"}, {}),  # M = 1
        ({"augment.mix_of": "own"}, {}),
        ({"augment.mix_of": "own", "loss.nacl": "mixnca"}, {"loss.nacl": "mixnca"}),
        ({"augment.mix_of": "own", "loss.num_positives": 2}, {"loss.num_positives": 2}),
    ],
)
def test_unused_settings_do_not_make_another_run(one: dict[str, object], other: dict[str, object]) -> None:
    assert resolve(one) != resolve(other)
    assert run_name(canonical(resolve(one))) == run_name(canonical(resolve(other)))


@pytest.mark.parametrize(
    "used",
    [
        {"loss.negatives": "g2", "loss.tau_plus": 0.1}, {"loss.negatives": "g2", "loss.beta": 2.0},
        {"loss.alpha": 1.0, "loss.weight": "loss", "loss.detach_weight": True},
        {"loss.alpha": 1.0, "loss.weight": "one"}, {"loss.alpha": 1.0, "loss.weight": "relative"},
        {"loss.alpha": 1.0, "loss.robust_negatives": "g1"},
        {"loss.nacl": "mixnca", "loss.num_positives": 2, "loss.lam": 0.9, "augment.mix_of": "own"},
        {"loss.alpha": 1.0, "adversary.negatives": "g1", "loss.tau_plus": 0.1},
        {"loss.alpha": 1.0, "adversary.negatives": "g2", "loss.beta": 2.0},
    ],
)  # fmt: skip
def test_used_settings_stay(used: dict[str, object]) -> None:
    assert canonical(resolve(used)) == resolve(used)


def test_training_alike_does_not_depend_on_measuring() -> None:
    assert training_key(resolve(SMALL)) == training_key(resolve(SMALL | {"evaluation.images": 3, "seed": 2}))
    assert training_key(resolve(SMALL)) != training_key(resolve(SMALL | {"train.lr": 1.0}))
