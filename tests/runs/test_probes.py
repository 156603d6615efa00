"""Probes of a run folder: the evaluator's figures, a stored classifier, and nothing done twice."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from intnacl.data import Dataset, load
from intnacl.errors import InputError
from intnacl.evaluation import knn, probe
from intnacl.runs import probes
from intnacl.runs.attack import plan, run_attacks
from intnacl.runs.measurements import Part
from intnacl.runs.opened import open_subject, pair
from intnacl.runs.probes import classifier_path, load_classifier, run_hcl_probe, run_knn, run_probe
from intnacl.runs.result import collect
from tiny_run import CPU, config, trained, write_images


@pytest.mark.parametrize("changes", [{}, {"normalize": True, "lr": 0.1}], ids=["raw", "unit"])
def test_the_probe_is_the_evaluators_and_its_classifier_is_stored(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    subject = trained(tmp_path)
    subject = replace(subject, config=replace(subject.config, probe=replace(subject.config.probe, **changes)))
    part = run_probe(subject, "digits")
    train, test = subject.load("digits")
    _, figures = probe.evaluate(subject.encoder, pair(train), pair(test), subject.config.probe)
    assert part.figures["accuracy"] == figures["accuracy"] > 50
    assert part.figures["curve"] == figures["curve"]
    assert part.figures["checksums"]["test"] == test.checksum
    assert (subject.folder / "probe-digits.safetensors").exists()
    with torch.no_grad():
        predicted = load_classifier(subject, "digits")(test.images / 255).argmax(1)
    assert 100 * (predicted == test.labels).double().mean() == pytest.approx(part.figures["accuracy"])


def test_a_probe_reads_its_images_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, read = trained(tmp_path), []

    def counted(name: str, split: str, *rest: Any, **options: Any) -> Any:
        read.append(split)
        return load(name, split, *rest, **options)

    monkeypatch.setattr("intnacl.runs.opened.load", counted)
    run_probe(subject, "digits")
    assert read == ["train", "test"]


def test_nothing_is_probed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = trained(tmp_path)
    first = run_probe(subject, "digits")
    monkeypatch.setattr(probes.probe, "fit", None)  # a second probe would fail
    assert run_probe(open_subject(subject.folder, CPU), "digits") == first
    load_classifier(subject, "digits")


@pytest.mark.parametrize("damage", ["gone", "cut", "other"])
def test_a_classifier_that_is_not_the_probes_is_made_again(tmp_path: Path, damage: str) -> None:
    subject = trained(tmp_path)
    run_probe(subject, "digits")
    path = subject.folder / "probe-digits.safetensors"
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(whole[:50])
    else:  # the same file of a probe with another seed
        other = replace(subject.config.probe, seed=1)
        run_probe(subject, "digits", other)
        classifier_path(subject, "digits", other).replace(path)
        assert path.read_bytes() != whole
    load_classifier(subject, "digits")
    assert path.read_bytes() == whole


def test_another_protocol_leaves_the_runs_own_classifier_alone(tmp_path: Path) -> None:
    subject = trained(tmp_path)
    run_probe(subject, "digits")
    own = (subject.folder / "probe-digits.safetensors").read_bytes()
    quick = run_probe(subject, "digits", replace(subject.config.probe, solver="lbfgs"))
    assert "curve" not in quick.figures
    assert (subject.folder / "probe-digits.safetensors").read_bytes() == own
    assert len(list(subject.folder.path.glob("probe-digits*.safetensors"))) == 2


def test_transfer_is_the_same_probe_on_other_images(tmp_path: Path) -> None:
    subject = trained(tmp_path)
    config = replace(subject.config, root=str(tmp_path))
    part = run_probe(replace(subject, config=config), write_images(tmp_path / "images"))
    assert part.figures["images"] == {"train": 12, "test": 12}
    assert part.figures["class_names"] == ["cat", "dog"]


def test_images_that_changed_since_are_measured_again(tmp_path: Path) -> None:
    subject = trained(tmp_path)
    subject = replace(subject, config=replace(subject.config, root=str(tmp_path)))
    name, attacks = write_images(tmp_path / "images"), plan(["fgsm"], 0.1, None)

    def measure() -> list[Part]:
        attacked = run_attacks(subject, name, attacks)  # first: it probes where it must
        return [attacked, run_probe(subject, name), run_knn(subject, name), run_hcl_probe(subject, name, 1)]

    first = measure()
    assert measure() == first
    write_images(tmp_path / "images", count=7)
    again = measure()
    for old, new in zip(first, again, strict=True):
        assert old.figures["checksums"] != new.figures["checksums"]
    assert [row["images"] for row in again[0].figures["attacks"]] == [14]


def test_attacks_on_images_before_the_last_probe_are_not_its_result(tmp_path: Path) -> None:
    subject = trained(tmp_path)
    subject = replace(subject, config=replace(subject.config, root=str(tmp_path)))
    name = write_images(tmp_path / "images")
    run_attacks(subject, name, plan(["fgsm"], 0.1, None))
    assert [row["images"] for row in collect(subject)["attacks"]] == [12, 12]
    write_images(tmp_path / "images", count=7)
    run_probe(subject, name)
    assert collect(subject)["attacks"] == []


def test_hcls_probe_stands_beside_it(tmp_path: Path) -> None:
    subject = replace(trained(tmp_path), config=config(**{"probe.seed": 3}))
    part = run_hcl_probe(subject, "digits", epochs=1)
    assert part.kind == "hcl_probe"
    assert (part.settings["probe"]["epochs"], part.settings["probe"]["seed"]) == (1, 3)
    assert {"accuracy", "accuracy_restored", "curve"} <= part.figures.keys()
    assert part.settings["augment"]["flip_p"] == 0.0
    assert not (subject.folder / "probe-digits.safetensors").exists()


def test_knn_is_the_evaluators(tmp_path: Path) -> None:
    subject = trained(tmp_path)
    train, test = subject.load("digits")
    part = run_knn(subject, "digits")
    assert part.figures["k"] == 1442 // 10
    for k, found in ((144, part), (5, run_knn(subject, "digits", 5))):
        figures = knn.evaluate(subject.encoder, pair(train), pair(test), knn.KnnConfig(k=k))
        assert found.figures["accuracy"] == figures["accuracy"]


def test_attacks_are_on_the_images_that_were_probed_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another folder of data sets may hold another one of the same name."""

    def _inverted(*arguments: Any, **options: Any) -> Dataset:
        found = load(*arguments, **options)
        return replace(found, images=255 - found.images)

    subject, attacks = trained(tmp_path), plan(["fgsm"], 0.1, 8)
    first = run_attacks(subject, "digits", attacks)
    monkeypatch.setattr("intnacl.runs.opened.load", _inverted)
    with pytest.raises(InputError, match=r"other images or labels than its probe.*delete .*probe-digits"):
        run_attacks(subject, "digits", plan(["fgsm"], 0.2, 8))
    (subject.folder / "probe-digits.safetensors").unlink()
    run_probe(subject, "digits")
    again = run_attacks(subject, "digits", attacks)
    assert again.figures["checksums"] != first.figures["checksums"]
    assert len(collect(subject)["attacks"]) == 2
