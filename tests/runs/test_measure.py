"""Probes and kNN of a run: figures of the evaluators, a stored classifier, and no work done twice."""

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from intnacl.data import Dataset, load
from intnacl.errors import InputError
from intnacl.evaluation import knn, probe
from intnacl.runs.attack import attacks_at, measure_attacks
from intnacl.runs.images import pair
from intnacl.runs.measure import measure_all, measure_hcl_probe, measure_knn, measure_probe
from intnacl.runs.measurement import Measurement
from intnacl.runs.opened import open_run
from intnacl.runs.overview import Overview
from intnacl.training.stop import Stop
from tiny_run import CPU, forbid_evaluation, trained, write_images


@pytest.mark.parametrize("changes", [{}, {"probe.normalize": True, "probe.lr": 0.1}], ids=["raw", "unit"])
def test_the_probe_is_that_of_the_evaluator_and_its_classifier_is_stored(tmp_path, changes):
    run = trained(tmp_path, **changes)
    found = measure_probe(run, "digits")
    train, test = run.images.labelled("digits")
    _, figures = probe.evaluate(run.encoder, pair(train), pair(test), run.config.probe)
    assert found.figures["accuracy"] == figures["accuracy"] > 50
    assert found.figures["curve"] == figures["curve"]
    assert found.figures["checksums"] == {"train": train.checksum, "test": test.checksum}
    assert (run.folder / "probe-digits.safetensors").exists()
    with torch.no_grad():
        predicted = run.classifier()(test.images / 255).argmax(1)
    assert 100 * (predicted == test.labels).double().mean() == pytest.approx(found.figures["accuracy"])


def test_no_probe_is_fitted_twice_and_another_protocol_keeps_the_own_classifier_of_the_run(
    tmp_path, monkeypatch
):
    run = trained(tmp_path)
    first = measure_probe(run, "digits")
    own = run.folder.classifier("digits").read_bytes()
    quick = measure_probe(run, "digits", replace(run.config.probe, solver="lbfgs"))
    assert "curve" not in quick.figures
    assert run.folder.classifier("digits").read_bytes() == own
    assert len(list(run.folder.path.glob("probe-digits*.safetensors"))) == 2
    forbid_evaluation(monkeypatch)
    again = open_run(run.folder, device=CPU)
    assert measure_probe(again, "digits") == first
    again.classifier("digits")
    assert not again.images.is_loaded("digits")


@pytest.mark.parametrize("damage", ["gone", "cut", "other"])
def test_a_missing_damaged_or_foreign_classifier_is_fitted_again(tmp_path, damage):
    run = trained(tmp_path)
    measure_probe(run, "digits")
    path = run.folder.classifier("digits")
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(whole[:50])
    else:  # the same file of a probe with another seed
        measure_probe(run, "digits", replace(run.config.probe, seed=1))
        (other,) = set(run.folder.path.glob("probe-digits*.safetensors")) - {path}
        other.replace(path)
        assert path.read_bytes() != whole
    run.classifier("digits")
    assert path.read_bytes() == whole


def test_changed_images_at_a_path_are_measured_again(tmp_path):
    folder, attacks = trained(tmp_path, root=str(tmp_path)).folder, attacks_at(["fgsm"], 0.1, None)
    name = write_images(tmp_path / "images")

    def measure() -> list[Measurement]:
        run = open_run(folder, device=CPU)
        (attacked,) = measure_attacks(run, name, attacks)  # first, because it fits the probe if necessary
        return [attacked, measure_probe(run, name), measure_knn(run, name), measure_hcl_probe(run, name, 1)]

    first = measure()
    assert measure() == first
    assert first[1].figures["images"] == {"train": 12, "test": 12}
    assert first[1].figures["class_names"] == ["cat", "dog"]
    write_images(tmp_path / "images", count=7)
    run = open_run(folder, device=CPU)
    measure_probe(run, name)
    assert Overview(run).result()["attacks"] == []  # the old ones were on the former images
    again = measure()
    for old, new in zip(first, again, strict=True):
        assert old.figures["checksums"] != new.figures["checksums"]
    assert [row["images"] for row in again[0].figures["attacks"]] == [14]


def test_knn_is_that_of_the_evaluator_and_hcls_probe_does_not_replace_ours(tmp_path):
    run = trained(tmp_path, **{"probe.seed": 3})
    train, test = run.images.labelled("digits")
    found = measure_knn(run, "digits")
    assert found.figures["k"] == 1442 // 10
    for k, one in ((144, found), (5, measure_knn(run, "digits", 5))):
        figures = knn.evaluate(run.encoder, pair(train), pair(test), knn.KnnConfig(k=k))
        assert one.figures["accuracy"] == figures["accuracy"]
    found = measure_hcl_probe(run, "digits", epochs=1)
    assert found.kind == "hcl_probe"
    assert (found.settings["probe"]["epochs"], found.settings["probe"]["seed"]) == (1, 3)
    assert {"accuracy", "accuracy_restored", "curve"} <= found.figures.keys()
    assert found.settings["augment"]["flip_p"] == 0.0
    assert not run.folder.classifier("digits").exists()


def test_attacks_are_only_on_the_images_that_were_probed(tmp_path, monkeypatch):
    """Another folder of data sets may hold another data set of the same name."""

    def _inverted(*arguments: Any, **options: Any) -> Dataset:
        found = load(*arguments, **options)
        return replace(found, images=255 - found.images)

    run, attacks = trained(tmp_path), attacks_at(["fgsm"], 0.1, 8)
    (first,) = measure_attacks(run, "digits", attacks)
    monkeypatch.setattr("intnacl.runs.images.load", _inverted)
    run = open_run(run.folder, device=CPU)
    with pytest.raises(InputError, match=r"other images or labels than its probe.*delete .*probe-digits"):
        measure_attacks(run, "digits", attacks_at(["fgsm"], 0.2, 8))
    run.folder.classifier("digits").unlink()
    measure_probe(run, "digits")
    (again,) = measure_attacks(run, "digits", attacks)
    assert again.figures["checksums"] != first.figures["checksums"]
    assert len(Overview(run).result()["attacks"]) == 2


def test_a_class_without_images_does_not_change_the_data_set(tmp_path, monkeypatch):
    def _with_one_more(*arguments: Any, **options: Any) -> Dataset:
        found = load(*arguments, **options)
        return replace(found, classes=(*found.classes, "ten"))

    monkeypatch.setattr("intnacl.runs.images.load", _with_one_more)
    (found,) = measure_attacks(trained(tmp_path), "digits", attacks_at(["fgsm"], 0.05, 8))
    assert found.figures["attacks"][0]["images"] == 8


def test_progress_bars_are_shown_on_a_terminal(tmp_path, capsys, monkeypatch):
    run, epochs = trained(tmp_path), 20
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    measure_probe(run, "digits")
    shown = capsys.readouterr().err
    assert "features of digits" in shown
    assert f"{epochs}/{epochs}" in shown
    measure_attacks(run, "digits", attacks_at(["fgsm"], 0.05, 50))
    assert "attacks on digits" in capsys.readouterr().err


def test_a_radius_given_twice_is_attacked_once(tmp_path):
    settings = {"eps": (0.1, 0.1), "fgsm_eps": (0.2, 0.2), "attacks": ("fgsm",), "images": 8}
    run = trained(tmp_path, **{f"evaluation.{name}": value for name, value in settings.items()})
    assert measure_all(run, Stop()) is None
    assert [row["eps"] for row in run.result["attacks"] if row["name"] == "fgsm"] == [0.1, 0.2]
