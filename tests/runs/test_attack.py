"""Attacks on a run's classifier: figures of the evaluator, one measurement each, resumed after a stop."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from intnacl.attacks.named import named_attack
from intnacl.evaluation import robustness
from intnacl.runs.attack import (
    attacks_at,
    group_attacks,
    group_rows,
    measure_attacks,
    most_passes,
    planned_attacks,
)
from intnacl.runs.config import EvaluationConfig
from intnacl.runs.examples import SHOWN, load_examples
from intnacl.runs.images import pair
from intnacl.runs.opened import Run, open_run
from intnacl.runs.overview import Overview
from tiny_run import CPU, edit_measurements, forbid_evaluation, trained


def worst_cases(run: Run) -> list[dict[str, Any]]:
    return [row for row in Overview(run).result()["attacks"] if row["name"] == "worst_case"]


def test_the_figures_are_those_of_the_evaluator(tmp_path, monkeypatch):
    run, attacks = trained(tmp_path), attacks_at(["fgsm", "pgd"], 0.05, 50)
    found = measure_attacks(run, "digits", attacks)
    wanted = robustness.evaluate(run.classifier(), *pair(run.images.labelled("digits").queries), attacks)
    worst = wanted["worst_case"][0] | {"of": ["fgsm", "pgd"]}
    (group,) = group_attacks(found, EvaluationConfig())
    assert [dict(row) for row in group_rows(group)] == [*wanted["attacks"], worst]
    shared = {key: wanted[key] for key in ("clean", "images", "zero_gradients")}
    for one in found:
        assert one.figures.items() >= shared.items()
        assert one.figures["checksums"] == run.images.checksums("digits")
        assert (len(one.verdicts["clean"]), len(one.verdicts["attacked"])) == (355, 50)
    assert found[0].figures["attacks"][0]["accuracy"] < found[0].figures["clean"]
    forbid_evaluation(monkeypatch)
    assert measure_attacks(run, "digits", attacks) == found


def test_a_progress_bar_never_ends_before_the_attacks(tmp_path):
    run = trained(tmp_path)
    images, labels = pair(run.images.labelled("digits").queries)
    classifier, passed = run.classifier(), []
    classifier.register_forward_hook(lambda module, inputs, output: passed.append(len(output)))
    attacks = attacks_at(["fgsm", "pgd", "pgd_tuned"], 0.0, 50)  # no image is fooled
    robustness.evaluate(classifier, images, labels, attacks)
    most = most_passes(attacks, len(images))
    assert most is not None
    assert 0.5 * most < sum(passed) <= most
    assert most_passes(attacks_at(["fgsm", "autoattack"], 0.1, 50), len(images)) is None


@pytest.mark.parametrize(("stop", "complete"), [(1, 0), (3, 1), (4, 2)])
def test_an_interrupted_attack_loses_no_finished_portion(tmp_path, monkeypatch, stop, complete):
    monkeypatch.setattr(robustness, "PORTION", 200 * 3 * 8 * 8)  # two portions, the second with 155 images
    monkeypatch.setattr("intnacl.runs.attack.BATCH", 100)
    attacks = attacks_at(["fgsm", "pgd"], 0.05, 250)
    whole = measure_attacks(trained(tmp_path / "whole"), "digits", attacks)
    run, done, real = trained(tmp_path / "stopped"), [], robustness.verdicts

    def some(*arguments: Any, **options: Any) -> Iterator[robustness.Verdicts]:
        for found in real(*arguments, **options):
            done.append((found.attack.name, found.start))
            yield found
            if len(done) == stop:
                raise KeyboardInterrupt

    monkeypatch.setattr(robustness, "verdicts", some)
    with pytest.raises(KeyboardInterrupt):
        measure_attacks(run, "digits", attacks)
    assert len(list(run.measurements.all("attack"))) == complete
    edit_measurements(run, "attack-*", lambda content: content.update(time_s=100.0))
    found = measure_attacks(open_run(run.folder, device=CPU), "digits", attacks)
    assert done == [("fgsm", 0), ("pgd", 0), ("fgsm", 200), ("pgd", 200)]
    assert [(one.figures, one.verdicts) for one in found] == [(one.figures, one.verdicts) for one in whole]
    assert found[0].time_s >= 100  # of both calls


def test_an_added_attack_counts_for_the_worst_case_of_its_radius(tmp_path):
    run = trained(tmp_path)
    for names, images in ((["fgsm", "pgd"], 64), (["pgd_tuned"], 64), (["pgd_tuned"], 16)):
        measure_attacks(run, "digits", attacks_at(names, 0.1, images))
    first, second, few = worst_cases(run)
    assert [(row["images"], row["of"]) for row in (first, second, few)] == [
        (64, ["fgsm", "pgd"]), (64, ["fgsm", "pgd", "pgd_tuned"]), (16, ["pgd_tuned"]),
    ]  # fmt: skip
    assert second["accuracy"] <= first["accuracy"]


def test_radii_of_fgsm_alone_form_one_group(tmp_path):
    wanted = EvaluationConfig(eps=(0.1,), attacks=("fgsm", "pgd"), fgsm_eps=(0.02, 0.05))
    at_one, curve = planned_attacks(wanted)
    assert [(attack.name, attack.eps) for attack in at_one] == [("fgsm", 0.1), ("pgd", 0.1)]
    assert [(attack.name, attack.eps) for attack in curve] == [("fgsm", 0.02), ("fgsm", 0.05)]
    alone = EvaluationConfig(eps=(0.1,), attacks=("pgd",))
    assert planned_attacks(alone) == [attacks_at(("pgd",), 0.1, None)]
    assert planned_attacks(EvaluationConfig(attacks=())) == []
    run = trained(tmp_path)
    measure_attacks(run, "digits", curve)
    assert [(row["eps"], row["of"]) for row in worst_cases(run)] == [(0.02, ["fgsm"]), (0.05, ["fgsm"])]


def test_examples_are_of_the_strongest_attack_at_the_largest_radius(tmp_path):
    run = trained(tmp_path)
    for name, eps, wanted in (
        ("fgsm", 0.05, ("fgsm", 0.05)),
        ("pgd", 0.1, ("pgd", 0.1)),
        ("pgd_tuned", 0.05, ("pgd", 0.1)),
        ("fgsm", 0.1, ("pgd", 0.1)),
        ("pgd_tuned", 0.1, ("pgd_tuned", 0.1)),
    ):
        measure_attacks(run, "digits", attacks_at([name], eps, 8))
        attack = load_examples(run, "digits").attack
        assert (attack["name"], attack["eps"]) == wanted


def test_stored_examples_are_those_of_the_evaluator_and_lie_in_the_ball(tmp_path):
    run = trained(tmp_path)
    measure_attacks(run, "digits", attacks_at(["pgd"], 0.1, 8))
    found, test = load_examples(run, "digits"), run.images.labelled("digits").queries
    assert found.classes == tuple("0123456789")
    images, labels = (tensor[test.spread(SHOWN)] for tensor in pair(test))
    wanted = robustness.examples(run.classifier(), images, labels, named_attack("pgd", 0.1))
    torch.testing.assert_close(found.tensors, wanted, rtol=0, atol=0)
    assert float((found.tensors["adversarial"] - found.tensors["clean"]).abs().max()) <= 0.1 + 1e-6


@pytest.mark.parametrize("damage", ["gone", "cut", "other classifier"])
def test_missing_damaged_or_foreign_examples_are_not_loaded(tmp_path, damage):
    run = trained(tmp_path)
    measure_attacks(run, "digits", attacks_at(["fgsm"], 0.1, 8))
    path = run.folder.examples("digits")
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:50])
    else:
        (probe,) = run.folder.measurements.glob("probe-*")
        (path if damage == "gone" else probe).unlink()
    assert load_examples(run, "digits") is None


def test_autoattack_resumes_after_the_last_finished_of_its_attacks(tmp_path, monkeypatch):
    """Stopped after each of its attacks on each portion of images, it gives the verdicts of a single run."""
    monkeypatch.setattr(robustness, "CHUNK", 16)
    monkeypatch.setattr("intnacl.attacks.square.QUERIES", 30)
    monkeypatch.setattr("intnacl.attacks.apgd.STEPS", 10)
    monkeypatch.setattr("intnacl.attacks.fab.STEPS", 5)
    attack = [named_attack("autoattack", 0.06, images=40)]
    (whole,) = measure_attacks(trained(tmp_path / "whole"), "digits", attack)
    run = trained(tmp_path / "stopped")
    save, stages = run.measurements.save, []

    class StoppedError(Exception):
        pass

    def stop(found: Any) -> None:
        save(found)
        if found.kind == "attack" and not found.is_complete:
            stages.append((found.verdicts.get("underway") or {}).get("stage"))
            raise StoppedError

    monkeypatch.setattr(run.measurements, "save", stop)
    while True:
        try:
            (found,) = measure_attacks(run, "digits", attack)
            break
        except StoppedError:
            continue
    assert stages[:5] == ["apgd-ce", "apgd-t", "fab-t", None, "apgd-ce"]
    assert found.verdicts == whole.verdicts
    assert found.figures == whole.figures
    row = found.figures["attacks"][0]
    assert (row["images"], len(found.verdicts["clean"])) == (40, 355)
    assert 0 < row["accuracy"] < row["clean"]
