"""The examples, and the code on the pages about other packages, run unchanged and do what they claim."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, call

import pytest
import torch

from intnacl import open_run
from intnacl.data import load
from intnacl.training.trackers import Tracking, check_trackers
from tiny_run import measured, measured_original, write_images

EXAMPLES = Path(__file__).parents[1] / "examples"
DOCS = EXAMPLES.parent / "docs"


# Warnings within other packages.
THEIRS = (
    "ignore::FutureWarning:pytorch_lightning.utilities._pytree",
    "ignore::UserWarning:pytorch_metric_learning.trainers.base_trainer",
    "ignore::DeprecationWarning:foolbox.attacks.blur",
)


def run(name: str, *arguments: object, **environment: str) -> str:
    """Return the output of an example; its warnings are errors, as everywhere."""
    filters = [word for each in ("error", *THEIRS) for word in ("-W", each)]
    command = [sys.executable, *filters, str(EXAMPLES / name), *map(str, arguments)]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env=os.environ | environment
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("preset", ["simclr", "intnacl"])
def test_own_loop_learns_from_unlabelled_digits(preset):
    printed = re.findall(r"([\d.]+) %", run("own_loop.py", "--preset", preset, "--epochs", "2"))
    few_before, _, few_after, _ = map(float, printed)
    assert few_after > few_before + 5  # percentage points, with 100 labels


def test_the_entry_for_robustbench_has_the_keys_of_its_leaderboard(tmp_path):
    """The keys are those of its files in model_info; `benchmark` is run by hand (docs/robustness.md)."""
    entry = runpy.run_path(str(EXAMPLES / "robustbench_entry.py"))["entry"]
    run = measured(tmp_path)
    rows = run.result["attacks"]
    attack = rows[0] | {"name": "autoattack", "eps": 8 / 255, "accuracy": 12.345}
    run.folder.result.write_text(json.dumps({**run.result, "attacks": [*rows, attack]}))
    found = entry(run, "digits", 0.5, 0.125)
    assert {key: found[key] for key in ("dataset", "eps", "clean_acc", "autoattack_acc", "reported")} == {
        "dataset": "digits",
        "eps": "8/255",
        "clean_acc": "50.00",
        "autoattack_acc": "12.50",
        "reported": "12.35",
    }
    assert set(found) == {
        *("link", "name", "authors", "additional_data", "number_forward_passes", "dataset", "venue"),
        *("architecture", "eps", "clean_acc", "reported", "autoattack_acc", "unreliable"),
    }


def numbers(pattern: str, text: str) -> list[float]:
    return [float(found) for found in re.findall(pattern, text)]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("lightly_simclr.py", "--epochs 3", marks=pytest.mark.slow),
        pytest.param("lightning_module.py", "--epochs 2 --workers 1", marks=pytest.mark.slow),
        ("metric_learning_trainer.py", "--epochs 2"),
        pytest.param("timm_backbone.py", "--epochs 3 --model resnet10t --size 16", marks=pytest.mark.slow),
    ],
)
def test_the_loss_falls_in_the_loops_of_other_packages(name, words):
    losses = numbers(r"epoch \d+, loss ([\d.]+)", run(name, *words.split()))
    assert len(losses) == int(words.split()[1])
    assert losses[-1] < losses[0] - 0.03


def test_the_loss_falls_on_images_of_hugging_face_datasets(tmp_path):
    write_images(tmp_path / "images", side=16)
    folders = {"HF_HOME": str(tmp_path / "cache"), "HF_DATASETS_OFFLINE": "1"}
    words = (tmp_path / "images", "--batch-size", 6, "--epochs", 8)
    printed = run("huggingface_datasets.py", *words, **folders)
    assert "12 images, 2 classes" in printed
    losses = numbers(r"loss ([\d.]+)", printed)
    assert len(losses) == 8
    assert sum(losses[4:]) < sum(losses[:4])


def test_features_can_be_used_in_a_pipeline_of_scikit_learn():
    printed = run("sklearn_pipeline.py", measured_original())
    assert numbers(r"accuracy +([\d.]+)", printed)[0] > 0.9


@pytest.mark.parametrize("name", ["foolbox_attacks.py", "torchattacks_attacks.py"])
def test_other_packages_attack_the_classifier(name):
    printed = run(name, measured_original(), "--images", "64", "--eps", "0.05")
    (clean,), (fgsm,), (pgd,) = (
        numbers(rf"(?m)^{attack}: .*?([\d.]+)%$", printed) for attack in ("clean", "FGSM", "PGD")
    )
    test, trained = load("digits", "test"), open_run(measured_original(), device="cpu")
    right = trained.classifier()(test.images[:64] / 255).argmax(1) == test.labels[:64]
    assert clean == pytest.approx(100 * float(right.float().mean()), abs=0.05)
    assert pgd <= fgsm < clean - 10


def code(page: str) -> list[str]:
    """Return the Python blocks of a page."""
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def test_the_loader_on_the_page_gives_views():
    names: dict[str, Any] = {}
    exec(code("other_packages.md")[0], names)
    assert names["x0"].shape == names["x1"].shape == (16, 3, 32, 32)
    assert not torch.equal(names["x0"], names["x1"])


def test_the_tracker_for_mlflow_on_the_page_is_one(tmp_path, monkeypatch):
    """A mock replaces MLflow, which would install a web server and a database."""
    mlflow, names = MagicMock(), {}
    mlflow.search_runs.return_value = []
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    exec(code("trackers.md")[1], names)
    tracker = names["MLflow"]()
    check_trackers([tracker])
    tracking = Tracking([tracker], id="0123456789abcdef", folder=tmp_path, config={"seed": 0})
    tracking.begin({})
    tracking.epoch(1, {"loss": 2.0})
    tracking.end()
    mlflow.search_runs.return_value = [known := MagicMock()]
    tracking.finish({1: {"loss": 2.0}}, {"accuracy/digits/clean": 97.0})
    mlflow.log_params.assert_called_once_with({"seed": 0})
    assert mlflow.log_metrics.call_args_list == [
        call({"loss": 2.0}, step=1), call({"accuracy/digits/clean": 97.0})
    ]  # fmt: skip
    assert mlflow.start_run.call_args == call(known.info.run_id, run_name=tmp_path.name)
    assert mlflow.end_run.call_count == 2
