"""A run opened from Python: its content, and the same measurements and training as the commands."""

from dataclasses import replace

import pytest
import torch

import intnacl
from intnacl.attacks.named import named_attack
from intnacl.errors import InputError, InputWarning
from intnacl.evaluation.features import extract
from intnacl.evaluation.knn import KnnConfig
from intnacl.models.encoders import build_model
from intnacl.runs.opened import open_run
from mistakes import must_refuse
from tiny_run import CPU, SETTINGS, config, forbid_evaluation, measured, trained, write_images


def test_an_opened_run_holds_its_encoder_images_and_result(tmp_path):
    run = intnacl.open_run(str(measured(tmp_path).folder), device="cpu")
    assert run.config == config()
    assert (run.image_size, len(run.encoder_sha256)) == (8, 64)
    assert not run.encoder.training
    train, test = run.images.labelled("digits")
    assert run.trained_on == train.checksum
    assert torch.isfinite(run.encoder(test.images[:4] / 255)).all()
    assert run.result["accuracy"]["digits"]["clean"] > 50
    run.folder.result.unlink()
    assert run.result is None


def test_measurements_are_kept_and_more_are_added_to_the_result(tmp_path, monkeypatch):
    run = measured(tmp_path)
    with monkeypatch.context() as patch:
        forbid_evaluation(patch)
        found = run.measure()
        assert [one.kind for one in found] == ["probe", "knn", *["attack"] * 4]
        (probe,) = run.measure(run.config.probe)
        assert probe == found[0]
    (knn,) = run.measure(KnnConfig(k=5))
    (attack,) = run.measure(named_attack("fgsm", 0.3, images=8))
    assert knn.figures["accuracy"] in [row["accuracy"] for row in run.result["knn"]]
    assert attack.figures["attacks"][0]["eps"] in [row["eps"] for row in run.result["attacks"]]


def test_a_run_from_python_equals_that_of_the_command(tmp_path):
    said: list[str] = []
    settings = SETTINGS | {"train.epochs": 1, "evaluation.eps": (0.02,), "loss.lam": 0.3}
    arguments = {"preset": "simclr", "device": "cpu", "say": said.append}
    with pytest.warns(InputWarning, match=r"loss\.lam=0\.3 has no effect here"):
        run = intnacl.runs.run(settings, out=tmp_path / "run", **arguments)
    stages = ["probe digits", "knn digits", "fgsm, pgd digits at eps 0.02"]
    assert [line.split(":")[0] for line in said] == stages
    assert run.result is not None
    assert run.folder.page.exists()
    test = run.images.labelled("digits").queries
    assert run.classifier()(test.images[:2] / 255).shape == (2, 10)
    told = r"was stopped \(time\) before its end: the same call resumes"
    must_refuse(intnacl.runs.run, SETTINGS, told, out=tmp_path / "other", max_minutes=0, **arguments)


def test_a_folder_without_a_trained_encoder_is_refused_and_moved_data_sets_are_found(tmp_path):
    must_refuse(open_run, tmp_path, r"is not a run folder: it has no config\.json")
    folder, moved = trained(tmp_path).folder, tmp_path / "moved"
    run = open_run(folder, device=CPU, root=moved)
    must_refuse(run.images.labelled, "tinyimagenet", str(moved))
    assert run.config.root is None
    folder.encoder.write_bytes(b"nothing")
    must_refuse(open_run, folder, r"encoder\.safetensors is damaged")
    folder.encoder.unlink()
    must_refuse(open_run, folder, "not fully trained yet")


def test_features_of_a_data_set_are_computed_once(tmp_path, monkeypatch):
    run = trained(tmp_path, root=str(tmp_path))
    name = write_images(tmp_path / "images")
    first = run.features("digits")
    assert torch.equal(first[1], extract(run.encoder, run.images.labelled("digits").queries.images))
    assert [len(features) for features in run.features(name)] == [12, 12]
    again = run.features("digits")
    assert again[0] is not first[0]  # only the last data set's are kept
    assert torch.equal(again[0], first[0])
    other = build_model(run.config.encoder, image_size=8, adversarial=False, seed=9).encoder
    assert not torch.equal(replace(run, encoder=other).features("digits")[0], first[0])
    monkeypatch.setattr("intnacl.runs.opened.extract", None)
    assert run.features("digits") is again


@pytest.mark.parametrize(
    ("file", "noted", "message"),
    [
        ("encoder", True, "encoder.safetensors is damaged: .* from a copy, or delete"),
        ("encoder", False, "is not the encoder of .*result.json.*delete the result to measure again"),
        ("probe-digits", True, "probe-digits.safetensors is damaged: .* or delete it to fit the probe again"),
    ],
)
def test_flipped_weights_never_replace_a_result(tmp_path, file, noted, message):
    folder = measured(tmp_path).folder
    path, before = folder / f"{file}.safetensors", folder.result.read_bytes()
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    if not noted:  # as in runs of earlier versions
        (folder / "encoder.sha256").unlink()
    with pytest.raises(InputError, match=message):
        intnacl.runs.run(SETTINGS, preset="simclr", out=folder, device="cpu").classifier()
    assert folder.result.read_bytes() == before


def test_wrong_arguments_are_named(tmp_path):
    (tmp_path / "file").touch()
    for path, told in ((3, "path=3 is not a path"), (tmp_path / "file", "is a file: give the folder")):
        must_refuse(open_run, path, told)  # type: ignore[arg-type]
    run = trained(tmp_path / "run")
    for name, told in ((3, "dataset=3 is of type int"), ("digit", "is unknown; did you mean 'digits'")):
        must_refuse(run.classifier, name, told)  # type: ignore[arg-type]
    for what in ("fgsm", 3, ["pgd"]):
        must_refuse(run.measure, what, r"what=.* cannot be measured: .* named_attack")  # type: ignore[arg-type]
