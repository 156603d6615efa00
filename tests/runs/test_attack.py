"""Attacks on a run folder's classifier are the evaluator's, one resumable part an eps or curve."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from intnacl.data import Dataset, load
from intnacl.errors import InputError
from intnacl.evaluation import robustness
from intnacl.runs import attack as robust
from intnacl.runs.attack import attack_settings, examples, plan, plans, run_attacks
from intnacl.runs.config import EvaluationConfig
from intnacl.runs.opened import pair
from intnacl.runs.probes import load_classifier, run_probe
from intnacl.runs.result import collect
from tiny_run import config, trained


def test_figures_are_the_evaluators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = trained(tmp_path)
    attacks = plan(["fgsm", "pgd"], 0.05, 50)
    part = run_attacks(subject, "digits", attacks)
    wanted = robustness.evaluate(
        load_classifier(subject, "digits"), *pair(subject.load("digits")[1]), attacks
    )
    checksums = part.figures["checksums"]
    assert part.figures == wanted | {"checksums": checksums}
    assert checksums["test"] == subject.load("digits")[1].checksum
    assert [row["images"] for row in part.figures["attacks"]] == [50, 50]
    assert part.figures["attacks"][0]["accuracy"] < part.figures["clean"]
    monkeypatch.setattr(robust.robustness, "verdicts", None)  # a second attack would fail
    assert run_attacks(subject, "digits", attacks) == part


def test_a_bar_of_attacks_never_ends_before_them(tmp_path: Path) -> None:
    subject = trained(tmp_path)
    images, labels = pair(subject.load("digits")[1])
    classifier, passed = load_classifier(subject, "digits"), []
    classifier.register_forward_hook(lambda module, inputs, output: passed.append(len(output)))
    attacks = plan(["fgsm", "pgd", "pgd_tuned"], 0.0, 50)  # which fool nobody
    robustness.evaluate(classifier, images, labels, attacks)
    most = robust.most_passes(attacks, len(images))
    assert most is not None
    assert 0.5 * most < sum(passed) <= most
    assert robust.most_passes(plan(["fgsm", "autoattack"], 0.1, 50), len(images)) is None


@pytest.mark.parametrize("kind", ["probe", "attack"])
def test_bars_on_a_terminal(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = trained(tmp_path)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    if kind == "attack":
        run_attacks(subject, "digits", plan(["fgsm"], 0.05, 50))
        assert "attacks on digits" in capsys.readouterr().err
    else:
        run_probe(subject, "digits")
        shown, epochs = capsys.readouterr().err, subject.config.probe.epochs
        assert "features of digits" in shown
        assert f"{epochs}/{epochs}" in shown


def test_a_class_without_images_is_no_change_of_the_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def _with_one_more(*arguments: Any, **options: Any) -> Dataset:
        found = load(*arguments, **options)
        return replace(found, classes=(*found.classes, "ten"))

    monkeypatch.setattr("intnacl.runs.opened.load", _with_one_more)
    part = run_attacks(trained(tmp_path), "digits", plan(["fgsm"], 0.05, 8))
    assert part.figures["attacks"][0]["images"] == 8


def test_attacks_on_another_encoder_or_probe_are_others(tmp_path: Path) -> None:
    subject, attacks = trained(tmp_path), plan(["fgsm"], 0.05, 8)
    others = (replace(subject, checksum="0"), replace(subject, config=config(**{"probe.seed": 3})))
    settings = [attack_settings(one, "digits", attacks) for one in (subject, *others)]
    assert settings[0] not in settings[1:]


@pytest.mark.parametrize("eps", [-0.1, 1.5, 8.0, float("nan")])
def test_an_eps_out_of_range(eps: float) -> None:
    with pytest.raises(InputError, match=r"is out of range; it counts in pixels in \[0, 1\]"):
        plan(["fgsm"], eps, None)


def test_an_attack_that_is_named_twice_is_done_once() -> None:
    assert plan(["pgd", "fgsm", "pgd"], 0.1, None) == plan(["pgd", "fgsm"], 0.1, None)


def test_an_unknown_attack_and_no_images() -> None:
    with pytest.raises(InputError, match="did you mean 'pgd'"):
        plan(["pdg"], 0.1, None)
    with pytest.raises(InputError, match="images=0"):
        plan(["pgd"], 0.1, 0)


def test_examples_stay_in_the_ball(tmp_path: Path) -> None:
    subject = trained(tmp_path)
    found, classes = examples(subject, "digits", plan(["pgd"], 0.1, None)[0])
    assert len(found["clean"]) == robust.SHOWN
    assert float((found["adversarial"] - found["clean"]).abs().max()) <= 0.1 + 1e-6
    assert classes == tuple("0123456789")


def test_fgsm_alone_is_one_part_for_all_its_radii(tmp_path: Path) -> None:
    wanted = EvaluationConfig(eps=(0.1,), attacks=("fgsm", "pgd"), fgsm_eps=(0.02, 0.05))
    at_one, curve = plans(wanted)
    assert [(attack.name, attack.eps) for attack in at_one] == [("fgsm", 0.1), ("pgd", 0.1)]
    assert [(attack.name, attack.eps) for attack in curve] == [("fgsm", 0.02), ("fgsm", 0.05)]
    assert plans(EvaluationConfig(eps=(0.1,), attacks=("pgd",))) == [plan(("pgd",), 0.1, None)]
    assert plans(EvaluationConfig(attacks=())) == []
    subject = trained(tmp_path)
    run_attacks(subject, "digits", curve)
    worst = [row for row in collect(subject)["attacks"] if row["name"] == "worst_case"]
    assert [(row["eps"], row["of"]) for row in worst] == [(0.02, ["fgsm"]), (0.05, ["fgsm"])]
