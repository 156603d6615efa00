"""Attacks on a run's classifier: the evaluator's figures, one measurement each, resumed after a stop."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from intnacl.attacks.named import named_attack
from intnacl.errors import InputError
from intnacl.evaluation import robustness
from intnacl.runs.attack import (
    SHOWN,
    attacks_at,
    group_attacks,
    group_rows,
    load_examples,
    measure_attacks,
    most_passes,
    planned_attacks,
)
from intnacl.runs.config import EvaluationConfig
from intnacl.runs.images import pair
from intnacl.runs.measurements import Measurement
from intnacl.runs.opened import Run, open_run
from intnacl.runs.result import Overview
from tiny_run import CPU, forbid_evaluation, trained


def rows(found: list[Measurement]) -> list[dict[str, Any]]:
    (group,) = group_attacks(found, EvaluationConfig())
    return [dict(row) for row in group_rows(group)]


def test_figures_are_the_evaluators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, attacks = trained(tmp_path), attacks_at(["fgsm", "pgd"], 0.05, 50)
    found = measure_attacks(run, "digits", attacks)
    wanted = robustness.evaluate(run.classifier(), *pair(run.images.labelled("digits").queries), attacks)
    worst = wanted["worst_case"][0] | {"of": ["fgsm", "pgd"]}
    assert rows(found) == [*wanted["attacks"], worst]
    for one in found:
        assert {one.figures[k] for k in ("clean", "images", "zero_gradients")} == {
            wanted[k] for k in ("clean", "images", "zero_gradients")
        }
        assert one.figures["checksums"] == run.images.checksums("digits")
        assert one.verdicts is not None
        assert (len(one.verdicts["clean"]), len(one.verdicts["attacked"])) == (355, 50)
    assert found[0].figures["attacks"][0]["accuracy"] < found[0].figures["clean"]
    forbid_evaluation(monkeypatch)
    assert measure_attacks(run, "digits", attacks) == found


def test_a_bar_of_attacks_never_ends_before_them(tmp_path: Path) -> None:
    run = trained(tmp_path)
    images, labels = pair(run.images.labelled("digits").queries)
    classifier, passed = run.classifier(), []
    classifier.register_forward_hook(lambda module, inputs, output: passed.append(len(output)))
    attacks = attacks_at(["fgsm", "pgd", "pgd_tuned"], 0.0, 50)  # which fool nobody
    robustness.evaluate(classifier, images, labels, attacks)
    most = most_passes(attacks, len(images))
    assert most is not None
    assert 0.5 * most < sum(passed) <= most
    assert most_passes(attacks_at(["fgsm", "autoattack"], 0.1, 50), len(images)) is None


def interrupt_after(count: int, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Interrupt attacks after so many portions of verdicts; gives those that there were."""
    done: list[tuple[str, int]] = []
    real = robustness.verdicts

    def _some(*arguments: Any, **options: Any) -> Iterator[robustness.Verdicts]:
        for found in real(*arguments, **options):
            done.append((found.attack.name, found.start))
            yield found
            if len(done) == count:
                raise KeyboardInterrupt

    monkeypatch.setattr(robustness, "verdicts", _some)
    return done


@pytest.mark.parametrize("stop", [1, 3, 4])
def test_an_interrupted_attack_loses_no_portion_that_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    monkeypatch.setattr(robustness, "PORTION", 200 * 3 * 8 * 8)  # two portions, the second with 155 images
    monkeypatch.setattr("intnacl.runs.attack.BATCH", 100)
    attacks = attacks_at(["fgsm", "pgd"], 0.05, 250)
    whole = measure_attacks(trained(tmp_path / "whole"), "digits", attacks)
    run = trained(tmp_path / "stopped")
    done = interrupt_after(stop, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        measure_attacks(run, "digits", attacks)
    assert len(list(run.measurements.all("attack"))) == {1: 0, 3: 1, 4: 2}[stop]  # the complete ones
    for path in run.folder.measurements.glob("attack-*.json"):
        content = json.loads(path.read_text()) | {"time_s": 100.0}
        del content["checksum"]
        path.write_text(json.dumps(content))
    found = measure_attacks(open_run(run.folder, device=CPU), "digits", attacks)
    assert done == [("fgsm", 0), ("pgd", 0), ("fgsm", 200), ("pgd", 200)]
    assert [one.figures for one in found] == [one.figures for one in whole]
    assert [one.verdicts for one in found] == [one.verdicts for one in whole]
    assert found[0].time_s >= 100  # of both calls


def test_verdicts_on_other_images_are_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, attacks = trained(tmp_path), attacks_at(["fgsm"], 0.05, 50)
    first = measure_attacks(run, "digits", attacks)
    (path,) = run.folder.measurements.glob("attack-*.json")
    content = json.loads(path.read_text())
    content["figures"]["checksums"]["test"] = "other"
    content["verdicts"] = {"clean": "0", "attacked": "0"}
    del content["checksum"]
    path.write_text(json.dumps(content))
    assert measure_attacks(run, "digits", attacks)[0].figures == first[0].figures


def test_an_attack_that_is_added_joins_the_worst_case_of_its_radius(tmp_path: Path) -> None:
    run = trained(tmp_path)
    measure_attacks(run, "digits", attacks_at(["fgsm", "pgd"], 0.1, 64))
    measure_attacks(run, "digits", attacks_at(["pgd_tuned"], 0.1, 64))
    measure_attacks(run, "digits", attacks_at(["pgd_tuned"], 0.1, 16))
    worst = [row for row in Overview(run).result()["attacks"] if row["name"] == "worst_case"]
    assert [(row["images"], row["of"]) for row in worst] == [
        (64, ["fgsm", "pgd"]), (64, ["fgsm", "pgd", "pgd_tuned"]), (16, ["pgd_tuned"]),
    ]  # fmt: skip
    assert worst[1]["accuracy"] <= worst[0]["accuracy"]


def test_settings_of_attacks() -> None:
    assert attacks_at(["pgd", "fgsm", "pgd"], 0.1, None) == attacks_at(["pgd", "fgsm"], 0.1, None)
    for eps in (-0.1, 1.5, 8.0, float("nan")):
        with pytest.raises(InputError, match=r"is out of range; it counts in pixels in \[0, 1\]"):
            attacks_at(["fgsm"], eps, None)
    with pytest.raises(InputError, match="did you mean 'pgd'"):
        attacks_at(["pdg"], 0.1, None)
    with pytest.raises(InputError, match="images=0"):
        attacks_at(["pgd"], 0.1, 0)


def test_fgsm_alone_is_attacked_at_all_its_radii_together(tmp_path: Path) -> None:
    wanted = EvaluationConfig(eps=(0.1,), attacks=("fgsm", "pgd"), fgsm_eps=(0.02, 0.05))
    at_one, curve = planned_attacks(wanted)
    assert [(attack.name, attack.eps) for attack in at_one] == [("fgsm", 0.1), ("pgd", 0.1)]
    assert [(attack.name, attack.eps) for attack in curve] == [("fgsm", 0.02), ("fgsm", 0.05)]
    assert planned_attacks(EvaluationConfig(eps=(0.1,), attacks=("pgd",))) == [
        attacks_at(("pgd",), 0.1, None)
    ]
    assert planned_attacks(EvaluationConfig(attacks=())) == []
    run = trained(tmp_path)
    measure_attacks(run, "digits", curve)
    worst = [row for row in Overview(run).result()["attacks"] if row["name"] == "worst_case"]
    assert [(row["eps"], row["of"]) for row in worst] == [(0.02, ["fgsm"]), (0.05, ["fgsm"])]


# ---- images for pictures ---------------------------------------------------------------------------------


def shown(run: Run) -> tuple[str, float] | None:
    found = load_examples(run, "digits")
    return None if found is None else (found.attack["name"], found.attack["eps"])


def test_images_are_those_of_the_strongest_attack_at_the_largest_radius(tmp_path: Path) -> None:
    run = trained(tmp_path)
    for names, eps, wanted in (
        (["fgsm"], 0.05, ("fgsm", 0.05)),
        (["fgsm", "pgd"], 0.1, ("pgd", 0.1)),
        (["pgd_tuned"], 0.05, ("pgd", 0.1)),
        (["fgsm"], 0.1, ("pgd", 0.1)),
        (["pgd_tuned"], 0.1, ("pgd_tuned", 0.1)),
    ):
        measure_attacks(run, "digits", attacks_at(names, eps, 8))
        assert shown(run) == wanted


def test_stored_images_are_the_evaluators_and_stay_in_the_ball(tmp_path: Path) -> None:
    run = trained(tmp_path)
    measure_attacks(run, "digits", attacks_at(["pgd"], 0.1, 8))
    found, test = load_examples(run, "digits"), run.images.labelled("digits").queries
    assert found is not None
    assert found.classes == tuple("0123456789")
    chosen = test.spread(SHOWN)
    images, labels = (tensor[chosen] for tensor in pair(test))
    wanted = robustness.examples(run.classifier(), images, labels, named_attack("pgd", 0.1))
    assert found.tensors.keys() == wanted.keys()
    assert all(found.tensors[name].equal(wanted[name]) for name in wanted)
    assert float((found.tensors["adversarial"] - found.tensors["clean"]).abs().max()) <= 0.1 + 1e-6


@pytest.mark.parametrize("damage", ["gone", "cut", "other classifier"])
def test_images_that_are_not_the_classifiers_are_none(tmp_path: Path, damage: str) -> None:
    run = trained(tmp_path)
    measure_attacks(run, "digits", attacks_at(["fgsm"], 0.1, 8))
    path = run.folder.examples("digits")
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:50])
    else:
        for one in run.folder.measurements.glob("probe-*"):
            one.unlink()
    assert load_examples(run, "digits") is None
