"""Flags become dotted settings; flags that are not given are left out."""

from pathlib import Path

import pytest

from intnacl.cli import app
from intnacl.cli.flags import Flags
from intnacl.errors import InputError
from intnacl.runs.config import FLAGS
from intnacl.runs.resolve import resolve


def test_flags_are_settings_and_flags_not_given_are_left_out():
    assert Flags().overrides == {}
    given = Flags(dataset="cifar10", root=Path("/data"), seed=0, epochs=3, lam=0.25).overrides
    assert given == {"dataset": "cifar10", "root": "/data", "seed": 0, "train.epochs": 3, "loss.lam": 0.25}
    changed = resolve(Flags(epochs=3, batch_size=64, lr=0.1, num_positives=3, lam=0.2, alpha=2).overrides)
    assert (changed.train.epochs, changed.train.batch_size, changed.train.lr) == (3, 64, 0.1)
    assert (changed.loss.num_positives, changed.loss.lam, changed.loss.alpha) == (3, 0.2, 2)


def test_set_overrides_other_flags():
    given = Flags(lr=1.0, set_=("train.lr=2", "loss.nacl=a=b")).overrides
    assert given == {"train.lr": "2", "loss.nacl": "a=b"}
    with pytest.raises(InputError, match=r"--set 'train\.lr' must be KEY=VALUE"):
        _ = Flags(set_=("train.lr",)).overrides


def test_everyday_flags_have_one_name_everywhere():
    changed = resolve(Flags(size=64, augment="simclr", set_=("augment.blur_p=0.1",)).overrides)
    assert (changed.size, changed.augment.strength, changed.augment.blur_p) == (64, 0.5, 0.1)
    settings = {name: f"--{name.replace('_', '-')}" for name in (*FLAGS.values(), "augment")}
    for command in ("pretrain", "run", "supervised"):
        flags = {flag for argument in app[command].assemble_argument_collection() for flag in argument.names}
        assert set(settings.values()) <= flags
    for command in (app["probe"], app["datasets"]["show"]):
        flags = {flag for argument in command.assemble_argument_collection() for flag in argument.names}
        assert {"--root"} < flags & set(settings.values())
    assert "--set" in {flag for one in app["probe"].assemble_argument_collection() for flag in one.names}
