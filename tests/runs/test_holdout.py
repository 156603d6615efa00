"""A run with held-out images never uses test images for training, monitoring, measuring or choosing."""

import json
import shutil

import pytest
import torch
from torch import Tensor

import intnacl
from intnacl.data import load
from intnacl.models.weights import clean_state
from intnacl.paper.published import departures
from intnacl.runs.commands import embed_command
from intnacl.runs.config import from_dict
from intnacl.runs.folder import RunFolder
from intnacl.runs.images import RunImages
from intnacl.runs.stages import train_and_measure
from intnacl.training.journal import records
from intnacl.training.stop import Stop
from intnacl.training.trainer import Trainer
from mistakes import must_refuse
from tiny_run import CPU, HERE, config, write_images

SETTINGS = {
    "holdout": 200, "train.epochs": 3, "train.monitor_epochs": 1, "train.keep": 1, "evaluation.eps": (0.05,),
    "evaluation.attacks": ("fgsm",),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run whose second epoch has the highest accuracy on the held-out images."""
    folder, scores = RunFolder(tmp_path_factory.mktemp("holdout") / "run"), iter((10.0, 90.0, 50.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("intnacl.evaluation.monitor.Monitor.__call__", lambda *_: {"knn": next(scores)})
        assert train_and_measure(config(**SETTINGS), folder, HERE, Stop()) is None
    return folder


def test_measured_images_were_not_trained_on(tmp_path, monkeypatch):
    trained_on: list[Tensor] = []
    real = Trainer.__init__

    def _noting(self: Trainer, objective: object, images: Tensor, *rest: object, **options: object) -> None:
        trained_on.append(images)
        real(self, objective, images, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Trainer, "__init__", _noting)
    images = RunImages(settings := config(**SETTINGS))
    assert train_and_measure(settings, RunFolder(tmp_path / "run"), HERE, Stop(), images=images) is None
    train, held = images.labelled("digits")
    assert not set(train.index.tolist()) & set(held.index.tolist())
    assert torch.equal(trained_on[0], load("digits").images[train.index])
    assert not any(split == "test" for _, split in images._splits)


def test_every_figure_names_its_split(folder):
    assert folder.state() == "finished"
    result = json.loads(folder.result.read_text())
    assert {row["split"] for key in ("attacks", "knn", "probes") for row in result[key]} == {"holdout"}
    assert result["accuracy"]["digits"]["split"] == "holdout"
    assert result["protocol"]["images"] == {"digits": {"train": 1242, "holdout": 200}}
    assert result["protocol"]["checksums"] == {"digits": {"train": load("digits").checksum}}
    assert {row["images"] for row in result["attacks"]} == {64}
    assert "Percent of the held-out training images; FGSM and PGD" in folder.page.read_text()


def test_transfer_sets_hold_out_their_own_training_images(folder, tmp_path):
    run = intnacl.open_run(folder, device=CPU, root=tmp_path)
    name = write_images(tmp_path / "images", count=150)
    train, held = run.images.labelled(name)
    assert (len(train), len(held), held.split) == (100, 200, "holdout")
    assert torch.bincount(held.labels).tolist() == [100, 100]
    (found,) = run.measure(intnacl.evaluation.knn.KnnConfig(k=5), dataset=name)
    assert found.figures["split"] == "holdout"


def test_the_best_encoder_outlives_its_checkpoint(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "run")
    last, best = (intnacl.from_pretrained(folder, which=which) for which in ("last", "best"))
    steps = [record["step"] for record in records(folder.log)]
    shorter = RunFolder(tmp_path / "two")
    two = {**SETTINGS, "train.epochs": 2, "train.monitor_epochs": 0}
    assert train_and_measure(config(**two), shorter, HERE, Stop()) is None
    torch.testing.assert_close(
        clean_state(best), clean_state(intnacl.from_pretrained(shorter)), rtol=0, atol=0
    )
    assert any(not torch.equal(a, b) for a, b in zip(last.parameters(), best.parameters(), strict=True))
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    tidied = intnacl.from_pretrained(tmp_path / "run", which="best")
    torch.testing.assert_close(clean_state(tidied), clean_state(best), rtol=0, atol=0)
    assert {path.name for path in folder.checkpoints.iterdir()} == {f"step-{step:09d}" for step in steps[1:]}
    must_refuse(intnacl.from_pretrained, shorter, r"which='best': .* has no encoder-best", which="best")
    must_refuse(intnacl.from_pretrained, folder, "which='worst' is unknown", which="worst")


def test_held_out_images_can_be_embedded_and_are_never_compared_with_published_figures(folder, tmp_path):
    embed_command(folder.path, None, "holdout", tmp_path / "held.npz", "cpu")
    assert (tmp_path / "held.png").exists()
    none = "split='holdout': this run holds no images out"
    must_refuse(RunImages(config()).split, "digits", "holdout", none)
    result = json.loads(folder.result.read_text())
    paper = from_dict({**result["config"], "dataset": "cifar100"})
    assert "holdout = 200, not 0" in departures(paper, result)


def test_holding_out_too_many_images_is_refused_before_training(tmp_path):
    folder, told = RunFolder(tmp_path / "run"), "holdout=1442 of the 1,442 training images"
    must_refuse(train_and_measure, config(holdout=1442), folder, HERE, Stop(), told)
    assert not folder.path.exists()
