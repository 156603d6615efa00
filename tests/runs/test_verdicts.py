"""Verdicts that are done outlast a stop, for the same images and attack alone, and are then forgotten."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from intnacl.attacks.named import Attack, named_attack
from intnacl.evaluation import robustness
from intnacl.runs.attack import plan, run_attacks
from intnacl.runs.measurements import PARTS
from intnacl.runs.verdicts import Verdicts
from tiny_run import trained

IMAGES = {"train": "a", "test": "b"}
FGSM = named_attack("fgsm", 0.1)


def new(folder: Path) -> Verdicts:
    return Verdicts(folder, "digits", torch.device("cpu"))


def fail() -> Tensor:
    raise AssertionError("attacked again")


def test_read_back(tmp_path: Path) -> None:
    right_n = torch.tensor([True, False, False, True])

    def _work() -> Tensor:
        time.sleep(0.01)  # longer than the thousandth of a second to which it is kept
        return right_n

    first = new(tmp_path / "begun")
    assert first.keep(IMAGES, FGSM, 0, _work).equal(right_n)
    assert first.earlier_s == 0
    first.keep(IMAGES, FGSM, 4, _work)
    second = new(tmp_path / "begun")
    found = second.keep(IMAGES, FGSM, 0, fail)
    assert found.dtype == torch.bool
    assert found.equal(right_n)
    assert second.earlier_s >= 0.01
    second.keep(IMAGES, FGSM, 4, fail)
    assert second.earlier_s >= 0.02  # of both
    second.forget()
    with pytest.raises(AssertionError, match="attacked again"):
        new(tmp_path / "begun").keep(IMAGES, FGSM, 0, fail)


@pytest.mark.parametrize(
    ("images", "attack", "place"),
    [
        ({**IMAGES, "train": "c"}, FGSM, 0),
        ({**IMAGES, "test": "c"}, FGSM, 0),
        (IMAGES, named_attack("fgsm", 0.2), 0),
        (IMAGES, named_attack("fgsm", 0.1, images=8), 0),
        (IMAGES, FGSM, 4),
    ],
)
def test_others_are_not_taken(images: dict[str, str], attack: Attack, place: int, tmp_path: Path) -> None:
    verdicts = new(tmp_path)
    verdicts.keep(IMAGES, FGSM, 0, lambda: torch.ones(4, dtype=torch.bool))
    with pytest.raises(AssertionError, match="attacked again"):
        verdicts.keep(images, attack, place, fail)


def test_a_damaged_file_is_made_again(tmp_path: Path) -> None:
    verdicts = new(tmp_path)
    verdicts.keep(IMAGES, FGSM, 0, lambda: torch.ones(4, dtype=torch.bool))
    for path in tmp_path.rglob("*.json"):
        path.write_bytes(path.read_bytes()[:-5])
    assert verdicts.keep(IMAGES, FGSM, 0, lambda: torch.zeros(4, dtype=torch.bool)).sum() == 0


def test_an_interrupted_attack_loses_none_that_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, attacks = trained(tmp_path / "run"), plan(["fgsm", "pgd"], 0.05, 50)
    whole = run_attacks(trained(tmp_path / "other"), "digits", attacks)
    under, done = robustness._Portion.under, list[str]()

    def _until(stops: str) -> Callable[..., Tensor]:
        def _under(portion: robustness._Portion, config: Attack, count: int) -> Tensor:
            if config.name == stops:
                raise KeyboardInterrupt
            done.append(config.name)
            return under(portion, config, count)

        return _under

    monkeypatch.setattr(robustness._Portion, "under", _until("pgd"))
    with pytest.raises(KeyboardInterrupt):
        run_attacks(subject, "digits", attacks)
    (path,) = (subject.folder / PARTS).rglob("verdict-*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"time_s": 100.0}))
    monkeypatch.setattr(robustness._Portion, "under", _until("none"))
    part = run_attacks(subject, "digits", attacks)
    assert done == ["fgsm", "pgd"]
    assert part.figures == whole.figures
    assert part.time_s > 100  # of both calls
    assert not [path for path in (subject.folder / PARTS).iterdir() if path.is_dir()]
