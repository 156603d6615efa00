"""Pretraining in its folder, in this process: what stops it, what it refuses, what it leaves behind."""

import errno
import gc
import json
import os
import shutil
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from intnacl.data import load
from intnacl.errors import InputError, InputWarning
from intnacl.models.encoders import EncoderConfig
from intnacl.models.weights import from_pretrained
from intnacl.runs.config import RunConfig
from intnacl.runs.folder import RunFolder
from intnacl.runs.images import RunImages
from intnacl.runs.pretrain import build_objective, decided, faster_precision, pretrain, suited_threads
from intnacl.runs.resolve import resolve
from intnacl.runs.stages import train_and_measure
from intnacl.training import checkpoint as checkpoints
from intnacl.training.journal import Journal
from intnacl.training.objectives import Contrastive, Objective, Supervised
from intnacl.training.ranks import Ranks
from intnacl.training.stop import Stop
from intnacl.training.trainer import DivergedError, Trainer
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


def test_a_finished_run_is_the_whole_record(finished: Path) -> None:
    assert {path.name for path in finished.iterdir()} == {
        "config.json", "log.jsonl", "checkpoints", "encoder.safetensors", "encoder.sha256", "curves.png",
        "lock",
    }  # fmt: skip
    assert RunFolder(finished).read_config() == config()
    encoder = from_pretrained(finished)
    assert encoder(torch.rand(2, 3, 8, 8)).shape == (2, 128)


@pytest.mark.parametrize(("schedule", "shown"), [("constant", False), ("cosine", True)])
def test_a_learning_rate_is_printed_where_it_changes_and_always_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], schedule: str, shown: bool
) -> None:
    run(tmp_path, train__schedule=schedule)
    assert ("  lr 0" in capsys.readouterr().out) == shown
    assert "lr" in json.loads((tmp_path / "log.jsonl").read_text())


def test_time_up_then_the_same_again_gives_the_same_bytes(tmp_path: Path, finished: Path) -> None:
    reasons = [run(tmp_path / "run", Stop(0)) for _ in range(3)]  # an update each
    assert reasons[:2] == ["time", "time"]
    assert run(tmp_path / "run") is None
    whole, pieces = ((folder / "encoder.safetensors").read_bytes() for folder in (finished, tmp_path / "run"))
    assert pieces == whole


def test_a_run_that_was_killed_before_its_encoder_was_written_writes_it(
    tmp_path: Path, finished: Path
) -> None:
    folder = tmp_path / "run"
    run(folder)
    (folder / "encoder.safetensors").unlink()
    assert run(folder) is None
    assert (folder / "encoder.safetensors").read_bytes() == (finished / "encoder.safetensors").read_bytes()


def test_a_damaged_checkpoint_is_named_skipped_and_the_end_is_the_same(
    tmp_path: Path, finished: Path
) -> None:
    folder = tmp_path / "run"
    run(folder, Stop(0)), run(folder, Stop(0))
    newest = max((folder / "checkpoints").iterdir())
    (newest / "model.safetensors").write_bytes(b"")
    with pytest.warns(InputWarning, match=f"{newest} is damaged"):
        assert run(folder) is None
    assert (folder / "encoder.safetensors").read_bytes() == (finished / "encoder.safetensors").read_bytes()


def test_a_finished_run_is_left_as_it_is(finished: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    assert run(finished) is None
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


def test_another_configuration_is_refused_with_the_difference(finished: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    with pytest.raises(InputError) as caught:
        run(finished, train__lr=0.5, seed=3)
    assert str(caught.value) == (
        f"{finished} holds a run with another configuration:\n"
        "  seed: 0 -> 3\n  train.lr: 0.001 -> 0.5\n"
        f"Take another --out, such as {finished}-2, or the settings it has."
    )
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


def test_a_finished_run_with_more_to_measure_names_the_commands_for_it(finished: Path) -> None:
    with pytest.raises(InputError, match=rf"eps.*\n.*`intnacl attack {finished} …`.*another --out"):
        run(finished, evaluation__eps=(0.3,))


def begun_by_an_earlier_version(folder: Path) -> None:
    written = json.loads((folder / "config.json").read_text())
    del written["encoder"]["pretrained"]
    (folder / "config.json").write_text(json.dumps(written))


def test_a_run_of_an_earlier_version_keeps_its_optimisers_former_rate(tmp_path: Path) -> None:
    run(tmp_path / "whole", train__optimizer="sgd", train__lr=1e-3)
    run(tmp_path / "run", Stop(0), train__optimizer="sgd", train__lr=1e-3)
    with pytest.raises(InputError, match=r"train\.lr: 0\.001 -> 0\.078125"):
        run(tmp_path / "run", train__optimizer="sgd")
    begun_by_an_earlier_version(tmp_path / "run")
    with pytest.raises(InputError, match=r"train\.lr: 0\.001 -> 0\.1"):
        run(tmp_path / "run", train__optimizer="sgd", train__lr=0.1)
    with pytest.warns(InputWarning, match=r"keeps defaults .* began it, train\.lr=0\.001: another --out has"):
        assert run(tmp_path / "run", train__optimizer="sgd") is None
    whole, resumed = (tmp_path / name / "encoder.safetensors" for name in ("whole", "run"))
    assert resumed.read_bytes() == whole.read_bytes()


def test_a_run_of_an_earlier_version_on_ones_own_images_keeps_its_attacks(tmp_path: Path) -> None:
    own = {"dataset": write_images(tmp_path / "images"), "size": 8, "train.batch_size": 6}
    own |= {"encoder.name": "small", "train.epochs": 1, "probe.solver": "lbfgs"}
    former = {"evaluation.eps": (0.002,), "evaluation.attacks": ("fgsm", "pgd"), "evaluation.fgsm_eps": ()}
    folder = RunFolder(tmp_path / "run")
    assert train_and_measure(resolve(own | former, device=CPU), folder, ALONE, Stop()) is None
    before = folder.read_result()
    begun_by_an_earlier_version(folder.path)
    with pytest.warns(
        InputWarning, match=r"evaluation\.eps=\(0\.002,\), evaluation\.attacks=\('fgsm', 'pgd'\)"
    ):
        assert train_and_measure(resolve(own, device=CPU), folder, ALONE, Stop()) is None
    result = folder.read_result()
    assert result is not None
    assert before is not None
    assert result["accuracy"] == before["accuracy"]
    another = resolve(own | former | {"evaluation.eps": (0.1,)}, device=CPU)
    with pytest.raises(InputError, match=r"evaluation\.eps: \[0\.002\] -> \[0\.1\]"):
        train_and_measure(another, folder, ALONE, Stop())
    new = RunFolder(tmp_path / "new")
    assert train_and_measure(resolve(own, device=CPU), new, ALONE, Stop()) is None
    result = new.read_result()
    assert result is not None
    rows = [
        (row["name"], round(255 * row["eps"])) for row in result["attacks"] if row["name"] != "worst_case"
    ]
    assert sorted(rows) == [*(("fgsm", n) for n in (1, 2, 4, 8, 16)), ("pgd_tuned", 8)]
    assert result["accuracy"][str(own["dataset"])]["pgd"] is not None


def test_pretrained_weights_are_trained_on_and_a_stopped_run_ends_in_the_same_bytes(tmp_path: Path) -> None:
    import timm

    weights = tmp_path / "theirs.pth"
    torch.save(timm.create_model("resnet10t", num_classes=7).state_dict(), weights)
    timms = {"encoder__name": "timm:resnet10t", "encoder__pretrained": str(weights), "train__epochs": 1}
    timms |= {"dataset": write_images(tmp_path / "images"), "size": 8, "train__batch_size": 6}
    assert run(tmp_path / "whole", **timms) is None
    assert [run(tmp_path / "run", Stop(0), **timms) for _ in range(2)] == ["time", None]
    whole, pieces = (tmp_path / name / "encoder.safetensors" for name in ("whole", "run"))
    assert pieces.read_bytes() == whole.read_bytes()
    encoder = RunFolder(tmp_path / "run").read_config().encoder
    assert encoder.mean == (0.485, 0.456, 0.406)
    weights.unlink()
    assert from_pretrained(tmp_path / "run").mean.flatten().tolist() == pytest.approx(encoder.mean)


def test_a_record_without_weights_is_not_trained_over(tmp_path: Path) -> None:
    """As it is where weights are not kept: the same command would replace the figures."""
    folder = tmp_path / "run"
    run(folder)
    (folder / "result.json").write_text("{}")
    (folder / "encoder.safetensors").unlink()
    shutil.rmtree(folder / "checkpoints")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="record of a finished run without its weights: take another --out"):
        run(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_settings_that_change_nothing_may_change(finished: Path) -> None:
    assert run(finished, train__keep=7, train__save_steps=3, train__compile="true", root="/nowhere") is None


# ---- what can go wrong -----------------------------------------------------------------------------------


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: Path) -> None:
    folder = tmp_path / "run"
    run(folder, Stop(0))
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save_file", full)
        with pytest.raises(
            InputError, match=r"step-000000002 could not be written: No space left on device\."
        ):
            run(folder)
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-000000001"]
    with monkeypatch.context() as patch:
        patch.setattr("matplotlib.figure.Figure.savefig", full)
        with pytest.raises(InputError, match=r"curves\.png could not be written: No space left on device\."):
            run(folder)
    assert run(folder) is None
    assert (folder / "encoder.safetensors").read_bytes() == (finished / "encoder.safetensors").read_bytes()


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match=r"is a file: give a folder|could not be written: a file stands"):
            run(out)

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", denied)
    with pytest.raises(InputError, match=r"could not be written: Permission denied\. .*fix the permissions"):
        run(tmp_path / "new")


def test_a_second_process_is_sent_away_and_takes_nothing_from_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: Path
) -> None:
    """Both would write the log, and sweep away what the other is about to save."""
    folder, refused = tmp_path / "run", []
    train = Trainer.run

    def meanwhile(*arguments: Any) -> str | None:
        with pytest.raises(InputError, match=r"another process is working in .*run: wait .* --out"):
            run(folder)
        refused.append((folder / "config.json").exists())
        return train(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "run", meanwhile)
        assert run(folder) is None
    assert refused == [True]
    assert (folder / "encoder.safetensors").read_bytes() == (finished / "encoder.safetensors").read_bytes()
    assert run(folder) is None


def test_missing_data_is_named(tmp_path: Path) -> None:
    (tmp_path / "tiny-imagenet-200.zip").write_bytes(b"")
    with pytest.raises(InputError, match=r"tiny-imagenet-200\.zip is not the official archive"):
        run(tmp_path / "a", dataset="tinyimagenet", root=str(tmp_path))
    with pytest.raises(InputError, match="nowhere is not a folder"):
        run(tmp_path / "b", dataset=f"folder:{tmp_path / 'nowhere'}")


def test_a_changed_image_is_not_taken_for_the_one_a_run_began_with(tmp_path: Path) -> None:
    name = write_images(tmp_path / "images")
    settings = {
        "dataset": name,
        "root": str(tmp_path),
        "train.batch_size": 4,
        "size": 8,
        "encoder.name": "small",
    }
    assert run(tmp_path / "run", Stop(0), **settings) == "time"
    image = tmp_path / "images" / "train" / "cat" / "0.png"
    before = image.read_bytes()
    Image.new("RGB", (8, 8), "red").save(image)
    with pytest.raises(InputError, match="was begun with other images"):
        run(tmp_path / "run", **settings)
    image.write_bytes(before)
    assert run(tmp_path / "run", **settings) is None
    assert run(tmp_path / "run", **settings) is None
    Image.new("RGB", (8, 8), "red").save(image)
    with pytest.raises(InputError, match="was begun with other images"):  # a finished one is not, either
        run(tmp_path / "run", **settings)
    shutil.rmtree(tmp_path / "images")
    assert run(tmp_path / "run", **settings) is None  # trained long ago, and nothing is taken for its images


def test_a_named_set_is_not_loaded_for_a_finished_run(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not change, and may be large."""
    shutil.copytree(finished, tmp_path / "run")
    monkeypatch.setattr("intnacl.runs.images.load", lambda *_, **__: pytest.fail("loaded"))
    assert run(tmp_path / "run") is None


def test_a_damaged_encoder_is_written_again_from_the_last_checkpoint(tmp_path: Path) -> None:
    run(tmp_path)
    encoder = tmp_path / "encoder.safetensors"
    whole = encoder.read_bytes()
    encoder.write_bytes(whole[:100])
    with pytest.raises(InputError, match=r"damaged .*delete it and repeat the run's command"):
        run(tmp_path)
    encoder.unlink()
    run(tmp_path)
    assert encoder.read_bytes() == whole


def test_a_run_leaves_nothing_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU there would be less room to measure its encoder, and for the next run of the process."""
    made = []

    def noted(*arguments: Any) -> Objective:
        objective = build_objective(*arguments)
        made.append(weakref.ref(objective))
        return objective

    monkeypatch.setattr("intnacl.runs.pretrain.build_objective", noted)
    gc.disable()  # else Python may look just then
    try:
        run(tmp_path)
        assert [objective() for objective in made] == [None]
    finally:
        gc.enable()


def test_a_rate_far_too_large_ends_in_a_clear_message(tmp_path: Path) -> None:
    with pytest.raises(
        DivergedError, match=r"not finite (at|after) step \d+ .*last good checkpoint.*Lower --lr"
    ):
        run(tmp_path, train__lr=1e38, train__optimizer="sgd", train__epochs=4)
    assert not (tmp_path / "encoder.safetensors").exists()
    found = checkpoints.newest(tmp_path / "checkpoints")
    assert found is None or all(value.isfinite().all() for value in found.model.values())


@pytest.mark.parametrize("place", ["__init__", "run"])
def test_out_of_memory_says_what_to_lower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(Trainer, place, no_room)
    with pytest.raises(InputError, match=r"out of memory: lower --batch-size"):
        run(tmp_path)


def test_a_mistake_before_the_first_epoch_leaves_the_folder_to_the_corrected_command(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not fit"):
        run(tmp_path / "run", train__batch_size=100_000)
    assert not (tmp_path / "run").exists()
    assert run(tmp_path / "run") is None


def test_a_mistake_takes_away_nothing_that_was_there(tmp_path: Path) -> None:
    wrong = config(train__batch_size=100_000)
    folder = RunFolder(tmp_path)
    folder.begin(wrong)
    with pytest.raises(InputError, match="does not fit"):
        pretrain(wrong, folder, ALONE, Stop())
    assert RunFolder(tmp_path).read_config() == wrong


def test_a_run_that_fails_after_an_epoch_keeps_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(trainer: Trainer, stop: Stop, journal: Journal) -> None:
        journal.path.write_text('{"epoch": 1}\n')
        raise DivergedError("not a number")

    monkeypatch.setattr(Trainer, "run", fail)
    with pytest.raises(DivergedError):
        run(tmp_path)
    assert RunFolder(tmp_path).read_config() == config()
    assert (tmp_path / "log.jsonl").read_text()


def test_a_contrastive_batch_of_one_is_refused_by_its_setting(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"train\.batch_size=1 has no negatives"):
        run(tmp_path / "run", train__batch_size=1)


def test_a_batch_too_small_for_its_mixed_views_is_refused_before_any_update(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mixed = {"loss__nacl": "mixnca", "loss__num_positives": 5}
    with pytest.raises(InputError, match=r"train\.batch_size=4 .* 4 others: take 5 or more, or a smaller"):
        run(tmp_path / "run", train__batch_size=4, **mixed)
    assert "updates to go" not in capsys.readouterr().out


def test_images_that_are_not_square_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "wide.npz", images=np.zeros((32, 8, 10, 3), dtype=np.uint8))
    with pytest.raises(InputError, match="8×10 images, but encoders are for square ones"):
        run(tmp_path / "run", dataset=f"npz:{tmp_path / 'wide.npz'}")
    assert not (tmp_path / "run").exists()


# ---- the parts -------------------------------------------------------------------------------------------


def test_objectives_by_name(tmp_path: Path) -> None:
    digits = load("digits")
    assert isinstance(build_objective(config(), digits, ALONE), Contrastive)
    supervised = build_objective(config(objective="supervised"), digits, ALONE)
    assert isinstance(supervised, Supervised)
    assert supervised.model[1].out_features == 10
    np.savez(tmp_path / "plain.npz", images=np.zeros((4, 8, 8, 3), dtype=np.uint8))
    unlabelled = load(f"npz:{tmp_path / 'plain.npz'}")
    with pytest.raises(InputError, match="has no labels: supervised training needs them"):
        build_objective(config(objective="supervised"), unlabelled, ALONE)


def test_supervised_training_runs_to_its_end(tmp_path: Path) -> None:
    assert run(tmp_path, objective="supervised") is None
    assert "accuracy" in json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0])


def test_the_small_network_trains_with_one_thread_and_gives_the_others_back(tmp_path: Path) -> None:
    threads = []
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with suited_threads(config(), HERE):
            threads.append(torch.get_num_threads())
        with suited_threads(config(encoder__name="resnet18"), HERE):
            threads.append(torch.get_num_threads())
        assert [*threads, torch.get_num_threads()] == [1, 2, 2]
    finally:
        torch.set_num_threads(before)


def test_a_cpus_precision_is_decided_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intnacl.runs.pretrain.faster_precision", lambda encoder, side: "bf16")
    usual, folder = resolve({"encoder.name": "resnet18"}), RunFolder(tmp_path / "run")
    images = RunImages(usual)
    assert decided(config(), folder, HERE, images).train.precision == "fp32"  # the small network
    new = decided(usual, folder, HERE, images)
    assert (new.train.precision, new.train.compile) == ("bf16", False)
    assert folder.begin(new)
    monkeypatch.setattr("intnacl.runs.pretrain.faster_precision", lambda encoder, side: "fp32")
    assert decided(usual, folder, HERE, images) == new
    given = resolve({"encoder.name": "resnet18", "train.precision": "fp32"})
    assert decided(given, folder, HERE, images).train.precision == "fp32"


def test_the_faster_precision_is_measured_and_trains(tmp_path: Path) -> None:
    small = EncoderConfig(name="small")
    assert faster_precision(small, 8) in ("bf16", "fp32")
    folder = RunFolder(tmp_path / "run")
    settings = config(train__precision="bf16", loss__alpha=1.0)
    assert pretrain(settings, folder, HERE, Stop()) is None
    assert folder.read_config().train.precision == "bf16"
