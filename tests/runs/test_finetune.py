"""The protocols: each classifier is measured separately, and fine-tuning resumes exactly."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from intnacl.attacks.named import named_attack
from intnacl.errors import InputError
from intnacl.evaluation import probe
from intnacl.evaluation.adversarial_probe import AlfConfig
from intnacl.runs.card import model_card
from intnacl.runs.commands import corruptions_command
from intnacl.runs.finetune import (
    AFF,
    clean_finetuning_of,
    finetuned_folder,
    finetuning_of,
    share_of_labels,
)
from intnacl.runs.folder import RunFolder
from intnacl.runs.measure import fitted_classifier
from intnacl.runs.objective import training_images
from intnacl.runs.opened import open_run
from intnacl.runs.overview import Overview
from intnacl.runs.page import print_result
from intnacl.runs.result import best_rows
from intnacl.runs.stages import train_and_measure
from intnacl.training.stop import Stop
from mistakes import must_refuse
from tiny_run import CPU, HERE, forbid_evaluation, measured, trained

SHORT = {
    "train.epochs": 1, "train.batch_size": 360, "train.save_steps": 1, "finetune.steps": 2, "train.lr": 0.02,
    "evaluation.eps": (0.05,), "evaluation.attacks": ("fgsm",),
}  # fmt: skip
ALF = AlfConfig(epochs=2, batch_size=256, lr=0.1, steps=2)
FGSM = named_attack("fgsm", 0.05, images=64)


def rows(run, protocol):
    return [row for row in Overview(run).result()["attacks"] if row["protocol"] == protocol]


def test_an_adversarial_probe_has_its_own_classifier_and_rows(tmp_path, monkeypatch):
    run = measured(tmp_path, **{f"alf.{name}": value for name, value in vars(ALF).items()})
    before = Overview(run).result()
    run.measure([FGSM], protocol="alf")
    (alf,) = run.measure(ALF)
    classifiers = [run.classifier(protocol=protocol) for protocol in ("slf", "alf")]
    images, labels = (
        run.images.labelled("digits").queries.images,
        run.images.labelled("digits").queries.labels,
    )
    with torch.no_grad():
        right = [(each(images / 255).argmax(1) == labels).float().mean() for each in classifiers]
    assert 100 * float(right[1]) == pytest.approx(alf.figures["accuracy"], abs=0.3)
    assert not torch.equal(classifiers[0].linear.weight, classifiers[1].linear.weight)
    result = Overview(run).result()
    assert result["accuracy"] == before["accuracy"]
    assert [row for row in result["attacks"] if row["protocol"] == "slf"] == before["attacks"]
    row, worst = rows(run, "alf")
    assert row.items() >= {"split": "test", "images": 64, "name": "fgsm"}.items()
    assert worst["of"] == ["fgsm"]
    assert best_rows(result, "digits", "alf") == [row]
    assert [(one["protocol"], one["clean"]) for one in result["probes"]] == [
        ("slf", result["accuracy"]["digits"]["clean"]), ("alf", alf.figures["accuracy"]),
    ]  # fmt: skip
    assert "Under attack: digits, ALF" in run.folder.page.read_text()
    card = model_card(run.config, result, "")
    assert f"| digits | ALF | FGSM | 0.05 | 64 | {row['accuracy']:.2f} | {row['clean']:.2f} |" in card
    assert f"| digits | ALF | {alf.figures['accuracy']:.2f} |" in card
    assert "accuracy, %, ALF, FGSM, eps 0.05, 64 images" in card
    forbid_evaluation(monkeypatch)
    monkeypatch.setattr("intnacl.evaluation.adversarial_probe.evaluate", None)
    assert run.measure(ALF) == [alf]


def test_adversarial_fine_tuning_is_a_separate_run_and_resumes_exactly(tmp_path):
    source = trained(tmp_path)
    config = finetuning_of(source, "digits", {key: v for key, v in SHORT.items() if "evaluation" not in key})
    config = replace(config, evaluation=replace(config.evaluation, eps=(0.05,), attacks=("fgsm",)))
    once, often = RunFolder(tmp_path / "once"), RunFolder(tmp_path / "often")
    assert train_and_measure(config, once, HERE, Stop()) is None
    while train_and_measure(config, often, HERE, Stop(max_minutes=1e-9)) is not None:
        if often.encoder.exists():  # measured in one go
            assert train_and_measure(config, often, HERE, Stop()) is None
            break
    assert once.encoder.read_bytes() == often.encoder.read_bytes() != source.folder.encoder.read_bytes()
    assert once.head.read_bytes() == often.head.read_bytes()
    run = open_run(once, device=CPU)
    queries = run.images.labelled("digits").queries
    with torch.no_grad():
        right = (run.classifier()(queries.images / 255).argmax(1) == queries.labels).float().mean()
    result = json.loads(once.result.read_text())
    accuracy = result["accuracy"]["digits"]
    assert accuracy["protocol"] == "aff"
    assert accuracy["clean"] == pytest.approx(100 * float(right), abs=0.3)
    assert [row["protocol"] for row in result["attacks"]] == ["aff", "aff"]
    assert accuracy["fgsm"] == rows(run, "aff")[0]["accuracy"]
    assert f"| digits | AFF | FGSM | 0.05 | 64 | {accuracy['fgsm']:.2f} |" in model_card(config, result, "")
    assert run.measure([FGSM], protocol="slf")[0].protocol == "slf"  # a fresh layer on the same encoder
    with pytest.raises(InputError, match="has no fine-tuned classifier on 'digits'"):
        source.classifier(protocol="aff")


def test_fine_tuning_starts_from_the_encoder_of_the_run_with_a_share_of_each_class(tmp_path):
    run = trained(tmp_path)
    config = finetuning_of(run, "digits", labels=0.1)
    assert (config.train.lr, config.train.batch_size, config.train.epochs) == (AFF.lr, 128, 25)
    assert (config.augment.crop_padding, config.augment.flip_p) == (1, 0.0)  # of 8 pixels, none mirrored
    some = training_images(config, run.images)
    assert len(some) == 144
    counts = torch.bincount(some.labels)
    assert counts.max() - counts.min() <= 2
    assert finetuned_folder(run, config).path == Path(f"{run.folder}-aff")
    other = replace(config, finetune=replace(config.finetune, encoder_sha256="0" * 64))
    with pytest.raises(InputError, match="another encoder than fine-tuning started from"):
        train_and_measure(other, RunFolder(tmp_path / "other"), HERE, Stop())
    assert not (tmp_path / "other").exists()


def test_clean_fine_tuning_is_reported_with_the_probe_on_the_same_labels_and_resumes_exactly(
    tmp_path, capsys
):
    source = trained(tmp_path)
    short = {"train.epochs": 3, "train.batch_size": 72, "train.save_steps": 1}
    config = clean_finetuning_of(source, "digits", 0.1, short)
    config = replace(config, evaluation=replace(config.evaluation, eps=(0.05,), attacks=("fgsm",)))
    once, often = RunFolder(tmp_path / "once"), RunFolder(tmp_path / "often")
    assert train_and_measure(config, once, HERE, Stop()) is None
    while train_and_measure(config, often, HERE, Stop(max_minutes=1e-9)) is not None:
        if often.encoder.exists():  # measured in one go
            assert train_and_measure(config, often, HERE, Stop()) is None
            break
    assert once.encoder.read_bytes() == often.encoder.read_bytes() != source.folder.encoder.read_bytes()
    assert once.head.read_bytes() == often.head.read_bytes()
    result = json.loads(once.result.read_text())
    assert result["few_labels"] == json.loads(often.result.read_text())["few_labels"]
    run = open_run(once, device=CPU)
    queries, some = run.images.labelled("digits").queries, training_images(config, run.images)
    with torch.no_grad():
        right = (run.classifier()(queries.images / 255).argmax(1) == queries.labels).float().mean()
    assert result["accuracy"]["digits"]["protocol"] == "sff"
    fitted, _ = fitted_classifier(run, "digits")  # for the predictions of the explorer page
    assert torch.equal(fitted.linear.weight, run.classifier().linear.weight)
    assert result["accuracy"]["digits"]["clean"] == pytest.approx(100 * float(right), abs=0.3)
    assert result["classes"]["digits"]["protocol"] == "sff"
    wanted = (some.images, some.labels), (queries.images, queries.labels)
    _, frozen = probe.evaluate(source.encoder, *wanted, config.probe)
    assert result["few_labels"] == {
        "dataset": "digits", "split": "test", "labels": 0.1, "seed": 0, "images": {"train": 144, "test": 355},
        "finetuned": result["accuracy"]["digits"]["clean"],
        "probe": pytest.approx(frozen["accuracy"], abs=0.6),
    }  # fmt: skip
    assert [row["protocol"] for row in result["attacks"]] == ["sff", "sff"]
    assert f"frozen encoder)</td><td>{result['few_labels']['probe']:.2f}</td>" in once.page.read_text()
    print_result(once)
    assert "from 10 % of the labels, 144 images" in capsys.readouterr().out
    must_refuse(run.classifier, r"has no fine-tuned classifier .*probe \S+ --protocol aff", protocol="aff")
    must_refuse(source.classifier, r"has no fine-tuned classifier .*`intnacl finetune", protocol="sff")


def test_labels_are_chosen_by_seed_with_the_same_share_of_every_class(tmp_path):
    run = trained(tmp_path)

    def chosen(labels, seed):
        config = clean_finetuning_of(run, "digits", labels, {"seed": seed})
        return training_images(config, run.images)

    few, more = chosen(0.01, 3), chosen(0.1, 3)
    assert sorted(torch.bincount(few.labels, minlength=10).tolist()) == [1] * 6 + [2] * 4
    assert set(few.index.tolist()) < set(more.index.tolist())
    assert torch.equal(few.index, chosen(0.01, 3).index)
    assert not torch.equal(few.index, chosen(0.01, 4).index)
    assert few.checksum == run.images.training().checksum  # it is a part of these
    must_refuse(chosen, 0.004, 3, r"0\.4 % of the 1,442 labels of 'digits' are 6 images, and 4 of 10 classes")
    with pytest.raises(InputError) as refusal:
        chosen(0.004, 3)
    least = float(re.search(r"take ([\d.]+) % or more", str(refusal.value))[1])
    assert len(set(chosen(least / 100, 3).labels.tolist())) == 10
    config = clean_finetuning_of(run, "digits", 0.004)
    must_refuse(train_and_measure, config, RunFolder(tmp_path / "few"), HERE, Stop(), "classes have none")
    assert not (tmp_path / "few").exists()


def test_a_share_of_the_labels_is_a_percentage_or_all(tmp_path):
    assert [share_of_labels(text) for text in ("1%", "10%", "0.5%", "all")] == [0.01, 0.1, 0.005, 1.0]
    for text in ("1", "0.1", "0%", "101%", "few", "nan%", ""):
        must_refuse(share_of_labels, text, f"labels='{text}' is not a share of the labels: give a percentage")
    run = trained(tmp_path)
    for labels, epochs, name in ((0.01, 60, "labels-1percent"), (1.0, 30, "labels-all")):
        config = clean_finetuning_of(run, "digits", labels)
        assert config.train.epochs == epochs
        assert finetuned_folder(run, config).path == Path(f"{run.folder}-{name}")


def test_each_corruption_is_measured_once_and_the_mean_needs_all(tmp_path, monkeypatch, capsys):
    run = measured(tmp_path)
    corruptions_command(run.folder.path, (), ("fog", "contrast"), None, "cpu")
    assert "contrast" in capsys.readouterr().out
    (row,) = json.loads(run.folder.result.read_text())["corruptions"]
    assert row.items() >= {"dataset": "digits", "protocol": "slf", "split": "test", "images": 355}.items()
    assert row["clean"] == pytest.approx(Overview(run).result()["accuracy"]["digits"]["clean"], abs=0.3)
    assert list(row["by_corruption"]) == ["fog", "contrast"]
    assert row["accuracy"] is None
    assert row["by_severity"][0] > row["by_severity"][4]
    assert "Corrupted images: digits" in run.folder.page.read_text()
    mean = sum(row["by_corruption"].values()) / 2
    line = f"| digits | SLF | 355 | 2 of 15 | {mean:.2f} | {row['clean']:.2f} |"
    assert line in model_card(run.config, Overview(run).result(), "")
    monkeypatch.setattr("intnacl.evaluation.corruptions.evaluate", None)
    corruptions_command(run.folder.path, (), ("fog",), None, "cpu")
    with pytest.raises(InputError, match="did you mean 'fog'"):
        corruptions_command(run.folder.path, (), ("frog",), None, "cpu")
