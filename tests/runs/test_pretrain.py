"""Pretraining in its folder, in this process: stops, refusals and the files it leaves."""

import errno
import gc
import json
import os
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np
import pytest
import torch
from PIL import Image

from intnacl.errors import InputError, InputWarning
from intnacl.models.encoders import EncoderConfig
from intnacl.runs.config import RunConfig
from intnacl.runs.folder import RunFolder
from intnacl.runs.images import RunImages
from intnacl.runs.objective import build_objective
from intnacl.runs.opened import from_pretrained
from intnacl.runs.pretrain import decided, faster_precision, pretrain
from intnacl.runs.resolve import resolve
from intnacl.runs.result import Result
from intnacl.runs.stages import train_and_measure
from intnacl.training import checkpoint as checkpoints
from intnacl.training.objectives import Objective
from intnacl.training.ranks import Ranks
from intnacl.training.stop import Stop
from intnacl.training.trainer import DivergedError, Trainer
from mistakes import must_refuse
from tiny_run import HERE, write_images

CPU = torch.device("cpu")
ALONE = Ranks(0, 1, CPU)


def config(**settings: object) -> RunConfig:
    quick = {"train.epochs": 1, "train.batch_size": 400, "train.monitor_epochs": 0, "train.save_steps": 1}
    return resolve(quick | {key.replace("__", "."): value for key, value in settings.items()}, device=CPU)


def run(folder: Path, stop: Stop | None = None, **settings: object) -> str | None:
    return pretrain(config(**settings), RunFolder(folder), ALONE, stop or Stop())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stages") / "run"
    assert run(folder) is None
    return folder


def weights(folder: Path) -> bytes:
    return RunFolder(folder).encoder.read_bytes()


@pytest.mark.parametrize(("schedule", "shown"), [("constant", False), ("cosine", True)])
def test_a_learning_rate_is_printed_if_it_changes_and_always_logged(tmp_path, capsys, schedule, shown):
    run(tmp_path, train__schedule=schedule)
    assert ("  lr 0" in capsys.readouterr().out) == shown
    assert "lr" in json.loads((tmp_path / "log.jsonl").read_text())


def test_a_damaged_or_missing_encoder_is_written_from_the_last_checkpoint(tmp_path, finished):
    run(tmp_path)
    encoder = tmp_path / "encoder.safetensors"
    encoder.write_bytes(weights(finished)[:100])
    must_refuse(run, tmp_path, r"damaged .*delete it and repeat the run's command")
    encoder.unlink()
    assert run(tmp_path) is None
    assert weights(tmp_path) == weights(finished)


def test_a_damaged_checkpoint_is_named_and_skipped_with_the_same_final_weights(tmp_path, finished):
    run(tmp_path, Stop(0)), run(tmp_path, Stop(0))
    newest = max((tmp_path / "checkpoints").iterdir())
    (newest / "model.safetensors").write_bytes(b"")
    with pytest.warns(InputWarning, match=f"{newest} is damaged"):
        assert run(tmp_path) is None
    assert weights(tmp_path) == weights(finished)


def test_a_finished_run_is_not_changed_and_another_configuration_is_refused(finished, monkeypatch):
    """A named data set cannot change and may be large, so it is not loaded."""
    monkeypatch.setattr("intnacl.runs.images.load", None)
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    assert run(finished) is None
    with pytest.raises(InputError) as caught:
        run(finished, train__lr=0.5, seed=3)
    assert str(caught.value) == (
        f"{finished} holds a run with another configuration:\n"
        "  seed: 0 -> 3\n  train.lr: 0.001 -> 0.5\n"
        f"Choose another --out, such as {finished}-2, or use the settings of the run."
    )
    to_measure = rf"eps.*\n.*`intnacl attack {finished} …`.*another --out"
    must_refuse(run, finished, to_measure, evaluation__eps=(0.3,))
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before
    assert run(finished, train__keep=7, train__save_steps=3, train__compile="true", root="/nowhere") is None


def remove_version(folder: Path) -> None:
    written = json.loads((folder / "config.json").read_text())
    del written["version"]
    (folder / "config.json").write_text(json.dumps(written))


def test_a_run_of_an_earlier_version_keeps_the_former_rate_of_its_optimiser(tmp_path):
    sgd = {"train__optimizer": "sgd"}
    run(tmp_path / "whole", **sgd, train__lr=1e-3)
    run(tmp_path / "run", Stop(0), **sgd, train__lr=1e-3)
    must_refuse(run, tmp_path / "run", r"train\.lr: 0\.001 -> 0\.078125", **sgd)
    remove_version(tmp_path / "run")
    must_refuse(run, tmp_path / "run", r"train\.lr: 0\.001 -> 0\.1", **sgd, train__lr=0.1)
    with pytest.warns(InputWarning, match=r"keeps defaults .* it, train\.lr=0\.001: another --out gets"):
        assert run(tmp_path / "run", **sgd) is None
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


def test_a_run_of_an_earlier_version_on_own_images_keeps_its_attacks(tmp_path):
    own = {"dataset": write_images(tmp_path / "images"), "size": 8, "train.batch_size": 6}
    own |= {"encoder.name": "small", "train.epochs": 1, "probe.solver": "lbfgs"}
    former = {"evaluation.eps": (0.002,), "evaluation.attacks": ("fgsm", "pgd"), "evaluation.fgsm_eps": ()}

    def measured(folder: RunFolder, settings: dict[str, Any]) -> Result:
        assert train_and_measure(resolve(settings, device=CPU), folder, ALONE, Stop()) is None
        return folder.read_result()

    folder = RunFolder(tmp_path / "run")
    before = measured(folder, own | former)
    remove_version(folder.path)
    kept = r"evaluation\.eps=\(0\.002,\), evaluation\.attacks=\('fgsm', 'pgd'\)"
    with pytest.warns(InputWarning, match=kept):
        assert measured(folder, own)["accuracy"] == before["accuracy"]
    another = own | former | {"evaluation.eps": (0.1,)}
    must_refuse(measured, folder, another, r"evaluation\.eps: \[0\.002\] -> \[0\.1\]")
    result = measured(RunFolder(tmp_path / "new"), own)
    rows = {
        (one["name"], round(255 * one["eps"])) for one in result["attacks"] if one["name"] != "worst_case"
    }
    assert rows == {*(("fgsm", n) for n in (1, 2, 4, 8, 16)), ("pgd_tuned", 8)}
    assert result["accuracy"][own["dataset"]]["pgd"] is not None


def test_pretrained_weights_are_trained_further_and_a_stopped_run_ends_in_the_same_bytes(tmp_path):
    import timm

    theirs, out = tmp_path / "theirs.pth", tmp_path / "run"
    torch.save(timm.create_model("resnet10t", num_classes=7).state_dict(), theirs)
    timms = {"encoder__name": "timm:resnet10t", "encoder__pretrained": str(theirs), "train__epochs": 1}
    timms |= {"dataset": write_images(tmp_path / "images"), "size": 8, "train__batch_size": 6}
    assert run(tmp_path / "whole", **timms) is None
    assert [run(out, Stop(0), **timms) for _ in range(2)] == ["time", None]
    assert weights(out) == weights(tmp_path / "whole")
    encoder = RunFolder(out).read_config().encoder
    assert encoder.mean == (0.485, 0.456, 0.406)
    theirs.unlink()
    assert from_pretrained(out).mean.flatten().tolist() == pytest.approx(encoder.mean)


# ---- failures --------------------------------------------------------------------------------------------


def failing(number: int) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch, finished):
    run(tmp_path, Stop(0))
    for module, name, file in (
        (checkpoints, "save_file", "step-000000002"),
        (matplotlib.figure.Figure, "savefig", r"curves\.png"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, failing(errno.ENOSPC))
            must_refuse(run, tmp_path, rf"{file} could not be written: No space left on device\.")
    assert run(tmp_path) is None
    assert weights(tmp_path) == weights(finished)


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        must_refuse(run, out, r"is a file: give a folder|could not be written: a file is where")
    monkeypatch.setattr(Path, "mkdir", failing(errno.EACCES))
    must_refuse(run, tmp_path / "new", r"could not be written: Permission denied\. .*fix the permissions")


def test_a_second_process_is_refused_and_does_not_disturb_the_first(tmp_path):
    """Both would write the log, and each would remove what the other is about to save."""
    first = RunFolder(tmp_path)
    with first.hold():
        first.begin(config())
        must_refuse(run, tmp_path, r"another process is working in .*: wait .* --out")
        assert first.read_config() == config()
    assert run(tmp_path) is None


def test_a_mistake_before_the_first_epoch_leaves_no_folder_behind(tmp_path, capsys):
    (tmp_path / "tiny-imagenet-200.zip").write_bytes(b"")
    np.savez(tmp_path / "wide.npz", images=np.zeros((32, 8, 10, 3), dtype=np.uint8))
    np.savez(tmp_path / "plain.npz", images=np.zeros((32, 8, 8, 3), dtype=np.uint8))
    tiny = {"dataset": "tinyimagenet", "root": str(tmp_path)}
    mixed = {"loss__nacl": "mixnca", "loss__num_positives": 5, "train__batch_size": 4}
    for wrong, told in (
        (tiny, r"tiny-imagenet-200\.zip is not the official archive"),
        ({"dataset": f"folder:{tmp_path / 'nowhere'}"}, "nowhere is not a folder"),
        ({"dataset": f"npz:{tmp_path / 'wide.npz'}"}, "8×10 images, but encoders take square ones"),
        (
            {"dataset": f"npz:{tmp_path / 'plain.npz'}", "objective": "supervised"},
            "has no labels: supervised training needs them",
        ),
        ({"train__batch_size": 100_000}, "does not fit"),
        ({"train__batch_size": 1}, r"train\.batch_size=1 leaves no negatives"),
        (mixed, r"train\.batch_size=4 .* 4 others: give 5 or more, or a smaller"),
    ):
        must_refuse(run, tmp_path / "run", told, **wrong)
        assert not (tmp_path / "run").exists()
        assert "updates to go" not in capsys.readouterr().out
    assert run(tmp_path / "run") is None


def test_a_changed_image_is_refused(tmp_path):
    settings = {"dataset": write_images(tmp_path / "images"), "root": str(tmp_path), "size": 8}
    settings |= {"train.batch_size": 4, "encoder.name": "small"}
    assert run(tmp_path / "run", Stop(0), **settings) == "time"
    image = tmp_path / "images" / "train" / "cat" / "0.png"
    before = image.read_bytes()
    for _ in range(2):  # during training, and after it
        Image.new("RGB", (8, 8), "red").save(image)
        must_refuse(run, tmp_path / "run", "was started with other images", **settings)
        image.write_bytes(before)
        assert run(tmp_path / "run", **settings) is None
    shutil.rmtree(tmp_path / "images")
    assert run(tmp_path / "run", **settings) is None  # without images, none can be mistaken for them


def test_a_run_frees_its_memory(tmp_path, monkeypatch):
    """On a GPU, the memory is needed to measure its encoder, and for the next run of the process."""
    made = []

    def noted(*arguments: Any) -> Objective:
        objective = build_objective(*arguments)
        made.append(weakref.ref(objective))
        return objective

    monkeypatch.setattr("intnacl.runs.pretrain.build_objective", noted)
    gc.disable()  # otherwise a collection might happen just then
    try:
        run(tmp_path)
        assert [objective() for objective in made] == [None]
    finally:
        gc.enable()


def test_a_far_too_large_rate_ends_in_a_clear_message(tmp_path):
    with pytest.raises(
        DivergedError, match=r"not finite (at|after) step \d+ .*last good checkpoint.*Lower --lr"
    ):
        run(tmp_path, train__lr=1e38, train__optimizer="sgd", train__epochs=4)
    assert not (tmp_path / "encoder.safetensors").exists()
    found = checkpoints.newest(tmp_path / "checkpoints")
    assert found is None or all(value.isfinite().all() for value in found.model.values())


@pytest.mark.parametrize("place", ["__init__", "run"])
def test_out_of_memory_says_what_to_lower(tmp_path, monkeypatch, place):
    def no_room(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(Trainer, place, no_room)
    must_refuse(run, tmp_path, r"out of memory: lower --batch-size")


def test_a_mistake_removes_no_existing_files(tmp_path):
    wrong, folder = config(train__batch_size=100_000), RunFolder(tmp_path)
    folder.begin(wrong)
    must_refuse(pretrain, wrong, folder, ALONE, Stop(), "does not fit")
    assert folder.read_config() == wrong


# ---- the parts -------------------------------------------------------------------------------------------


def test_the_precision_on_a_cpu_is_decided_once_and_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("intnacl.runs.pretrain.faster_precision", lambda encoder, side: "bf16")
    usual, folder = resolve({"encoder.name": "resnet18"}), RunFolder(tmp_path / "run")
    images = RunImages(usual)
    assert decided(config(), None, HERE, images).train.precision == "fp32"  # the small network
    new = decided(usual, None, HERE, images)
    assert (new.train.precision, new.train.compile) == ("bf16", False)
    assert folder.begin(new)
    monkeypatch.setattr("intnacl.runs.pretrain.faster_precision", lambda encoder, side: "fp32")
    assert decided(usual, folder.read_config(), HERE, images) == new
    given = resolve({"encoder.name": "resnet18", "train.precision": "fp32"})
    assert decided(given, folder.read_config(), HERE, images).train.precision == "fp32"


def test_the_faster_precision_is_measured_and_trains(tmp_path):
    assert faster_precision(EncoderConfig(name="small"), 8) in ("bf16", "fp32")
    assert run(tmp_path, train__precision="bf16", loss__alpha=1.0) is None
    assert RunFolder(tmp_path).read_config().train.precision == "bf16"
