"""Names of runs, and the settings that distinguish runs."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from grids import SMALL

from intnacl.paper.run_names import canonical, run_name, training_key
from intnacl.runs.config import RunConfig, flatten, to_dict
from intnacl.runs.folder import RunFolder
from intnacl.runs.resolve import resolve

RECORDED = sorted((Path(__file__).parents[2] / "results" / "runs").iterdir())
# Defaults that no recorded run has.
UNRECORDED = {
    "dataset": "digits", "encoder.head": "paper", "evaluation.transfer": [], "probe.lr": 3e-4,
    "probe.normalize": False, "train.precision": "auto",
}  # fmt: skip


def test_recorded_runs_keep_their_names():
    """New settings must not change them. If a default changes, raise `run_names.DEFAULTS`."""
    assert len(RECORDED) > 40
    configs = [canonical(RunFolder(folder).read_config()) for folder in RECORDED]
    assert [run_name(config) for config in configs] == [folder.name for folder in RECORDED]
    now = dict(flatten(to_dict(RunConfig())))
    assert {key: now[key] for key in UNRECORDED} == UNRECORDED


def test_a_name_is_safe_in_a_shell_and_in_a_path():
    assert re.fullmatch(r"[\w.-]+", run_name(resolve({"dataset": "folder:/a b/../<x>;$(y)"})))


@pytest.mark.parametrize(
    ("key", "value", "same"),
    [
        ("train.compile", True, True), ("root", "/data", True), ("train.keep", 5, True),
        ("train.lr", 2e-3, False), ("seed", 1, False), ("probe.epochs", 5, False),
        ("evaluation.images", 5, False),
    ],
)  # fmt: skip
def test_the_hash_covers_the_settings_that_the_result_depends_on(key, value, same):
    assert (run_name(resolve({key: value})) == run_name(resolve())) is same
    assert run_name(replace(resolve(), recipe="custom")) == run_name(resolve())


def test_a_default_rate_does_not_change_the_name_and_another_one_does():
    cifar = {"dataset": "cifar100"}
    assert run_name(resolve(cifar)) == run_name(resolve(cifar | {"train.lr": 3e-4}))
    sgd = cifar | {"train.optimizer": "sgd"}
    assert run_name(resolve(sgd)) == run_name(resolve(sgd | {"train.lr": 0.05}))
    assert run_name(resolve(sgd)) != run_name(resolve(sgd | {"train.lr": 3e-4}))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"loss.nacl": "mixnca", "loss.lam": 0.9}, {}),  # M = 1 has no mixed view
        ({"loss.lam": 0.9, "loss.num_positives": 2}, {"loss.num_positives": 2}),  # NCA has no mixed view
        ({"loss.tau_plus": 0.1, "loss.beta": 2.0}, {}),  # g0 has neither τ⁺ nor β
        ({"loss.negatives": "g1", "loss.beta": 2.0}, {"loss.negatives": "g1"}),
        ({"loss.weight": "one", "loss.detach_weight": True}, {}),  # alpha = 0 has no robust term
        ({"loss.alpha": 1.0, "loss.detach_weight": True}, {"loss.alpha": 1.0}),  # "relative" is a constant
        ({"loss.denominator": "MN"}, {}),  # M = 1
        ({"augment.mix_of": "own"}, {}),
        ({"augment.mix_of": "own", "loss.nacl": "mixnca"}, {"loss.nacl": "mixnca"}),
        ({"augment.mix_of": "own", "loss.num_positives": 2}, {"loss.num_positives": 2}),
    ],
)
def test_unused_settings_do_not_make_another_run(one, other):
    assert resolve(one) != resolve(other)
    assert run_name(canonical(resolve(one))) == run_name(canonical(resolve(other)))


@pytest.mark.parametrize(
    "used",
    [
        {"loss.negatives": "g2", "loss.tau_plus": 0.1}, {"loss.negatives": "g2", "loss.beta": 2.0},
        {"loss.alpha": 1.0, "loss.weight": "loss", "loss.detach_weight": True},
        {"loss.alpha": 1.0, "loss.weight": "one"}, {"loss.alpha": 1.0, "loss.weight": "relative"},
        {"loss.alpha": 1.0, "loss.robust_negatives": "g1"},
        {"loss.alpha": 1.0, "loss.robust_negatives": "g2", "loss.tau_plus": 0.1, "loss.beta": 2.0},
        {"loss.nacl": "mixnca", "loss.num_positives": 2, "loss.lam": 0.9, "augment.mix_of": "own"},
        {"loss.alpha": 1.0, "adversary.negatives": "g1", "loss.tau_plus": 0.1},
        {"loss.alpha": 1.0, "adversary.negatives": "g2", "loss.beta": 2.0},
    ],
)  # fmt: skip
def test_used_settings_are_kept(used):
    assert canonical(resolve(used)) == resolve(used)


def test_the_training_key_does_not_depend_on_measurements():
    assert training_key(resolve(SMALL)) == training_key(resolve(SMALL | {"evaluation.images": 3, "seed": 2}))
    assert training_key(resolve(SMALL)) != training_key(resolve(SMALL | {"train.lr": 1.0}))
