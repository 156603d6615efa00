"""Verdicts that are done outlast a stop, for the same images and attack alone, and are then forgotten."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from intnacl.attacks.named import Attack, named_attack
from intnacl.evaluation import robustness
from intnacl.runs.attack import plan, run_attacks
from intnacl.runs.verdicts import Verdicts
from tiny_run import trained

IMAGES = {"train": "a", "test": "b"}
FGSM = named_attack("fgsm", 0.1)
RIGHT, CLEAN = torch.tensor([True, False, False, True]), torch.tensor([True, True, False, True])


def new(folder: Path) -> Verdicts:
    return Verdicts(folder, "digits", torch.device("cpu"))


def kept(folder: Path) -> Verdicts:
    """Verdicts of two portions, each of which took ten seconds."""
    verdicts = new(folder)
    for start in (0, 4):
        found = robustness.Verdicts(FGSM, start, RIGHT, CLEAN)
        verdicts.keep(IMAGES, found, time.monotonic() - 10)
    return verdicts


def test_read_back(tmp_path: Path) -> None:
    first = kept(tmp_path)
    assert first.earlier_s == 0
    second = new(tmp_path)
    assert second.read(IMAGES, [FGSM]) == {FGSM: 8}
    assert second.earlier_s >= 20
    assert second.figures(0.0) == first.figures(0.0)
    assert second.figures(0.0)["clean"] == 75
    assert [row["accuracy"] for row in second.figures(0.0)["attacks"]] == [50]
    second.forget()
    assert new(tmp_path).read(IMAGES, [FGSM]) == {FGSM: 0}


@pytest.mark.parametrize(
    ("images", "attack"),
    [
        ({**IMAGES, "train": "c"}, FGSM),
        ({**IMAGES, "test": "c"}, FGSM),
        (IMAGES, named_attack("fgsm", 0.2)),
        (IMAGES, named_attack("fgsm", 0.1, images=8)),
    ],
)
def test_others_are_not_taken(images: dict[str, str], attack: Attack, tmp_path: Path) -> None:
    kept(tmp_path)
    assert new(tmp_path).read(images, [attack]) == {attack: 0}


def test_a_damaged_file_is_made_again(tmp_path: Path) -> None:
    kept(tmp_path)
    for path in tmp_path.rglob("*.json"):
        path.write_bytes(path.read_bytes()[:-5])
    assert new(tmp_path).read(IMAGES, [FGSM]) == {FGSM: 0}


def test_an_interrupted_attack_loses_none_that_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, attacks = trained(tmp_path / "run"), plan(["fgsm", "pgd"], 0.05, 50)
    whole = run_attacks(trained(tmp_path / "other"), "digits", attacks)
    real, done = robustness.verdicts, list[str]()

    def _one(*arguments: Any, **options: Any) -> Iterator[robustness.Verdicts]:
        for found in real(*arguments, **options):
            done.append(found.attack.name)
            yield found
            raise KeyboardInterrupt

    monkeypatch.setattr(robustness, "verdicts", _one)
    with pytest.raises(KeyboardInterrupt):
        run_attacks(subject, "digits", attacks)
    (path,) = (subject.folder.measurements).rglob("verdict-*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"time_s": 100.0}))
    monkeypatch.setattr(robustness, "verdicts", real)
    part = run_attacks(subject, "digits", attacks)
    assert done == ["fgsm"]
    assert part.figures == whole.figures
    assert part.time_s > 100  # of both calls
    assert not [path for path in (subject.folder.measurements).iterdir() if path.is_dir()]
