"""The commands that train and time: their flags, their output and their exit codes."""

import json
import sys
from pathlib import Path

import pytest

from command_line import TINY, assert_refused, exit_code, intnacl
from intnacl.cli.train import resume_command
from intnacl.errors import InputWarning
from intnacl.runs.config import RunConfig


def test_pretrain_takes_flags_a_file_and_settings(tmp_path):
    (tmp_path / "run.toml").write_text('preset = "adv"\n[train]\nepochs = 7\nlr = 0.002\n')
    result = intnacl(
        "pretrain", "--config", tmp_path / "run.toml", "--out", tmp_path / "run", "--device", "cpu",
        "--epochs", 1, "--batch-size", 400, "--seed", 5, "--alpha", 0.5, "--max-minutes", 9,
        "--set", "loss.temperature=0.3", "encoder.head=hcl", "--trackers", "tensorboard",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["seed"], config["train"]["epochs"], config["train"]["batch_size"]) == (5, 1, 400)
    assert (config["train"]["lr"], config["loss"]["alpha"], config["loss"]["weight"]) == (0.002, 0.5, "one")
    assert (config["loss"]["temperature"], config["encoder"]["head"]) == (0.3, "hcl")
    lines = result.stdout.splitlines()
    assert lines[:2] == ["digits, train: 1,442 images, 8×8, 10 classes", "3 updates to go, fp32, eager"]
    assert lines[2].startswith("epoch 1/1  nacl ")
    assert lines[3] == f"done: {tmp_path / 'run' / 'encoder.safetensors'}"
    assert list((tmp_path / "run" / "tensorboard").glob("events.*"))
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("pretrain --set train.epoch=3", "setting='train.epoch' is unknown; did you mean 'train.epochs'"),
        ("pretrain --preset intnacle", r"preset='intnacle' is unknown; did you mean 'intnacl'\?"),
        ("pretrain --device gpu", "device='gpu' is unknown"),
        ("run --preset simclr --compare adv", "--preset simclr and --compare exclude each other"),
        ("run --seed 1 --seeds 1 2", "--seed 1 and --seeds exclude each other"),
        ("run --preset simclr --set evaluation.eps=-1", r"eps=-1\.0 is out of range"),
        ("supervised --preset intnacl", "--preset does not apply to supervised training"),
        ("supervised --alpha 1", "--alpha does not apply to supervised training"),
        ("supervised --num-positives 2", "--num-positives does not apply to supervised training"),
        ("supervised --set train.lr=1 loss.alpha=1", "--set loss.alpha does not apply to supervised"),
        ("supervised --set adversary.eps=0.1", "--set adversary.eps does not apply to supervised training"),
        ("bench --device cpu --steps 0", "steps=0 times nothing"),
        ("bench --device cpu --only simclr moco", "--only 'moco' matches no row; the rows are 'SimCLR, "),
        ("bench --device cpu --out .", "is a folder: give a JSON file"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(words, message, tmp_path):
    assert_refused(words.split(), message, tmp_path)


Runs = dict[str, tuple[RunConfig, list[int]]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runs:
    """The configurations and seeds that a command starts, by label; "" if it is not a comparison."""
    runs: Runs = {}

    def compare(configs: dict[str, RunConfig], seeds: tuple[int, ...], *_: object) -> str:
        runs.update({label: (config, list(seeds)) for label, config in configs.items()})
        return "time"

    def run(config: RunConfig, *_: object) -> str:
        runs[""] = (config, [config.seed])
        return "time"

    monkeypatch.setattr("intnacl.runs.compare.compare", compare)
    monkeypatch.setattr("intnacl.runs.stages.train_and_measure", run)
    (tmp_path / "own.toml").write_text('preset = "intcl"\nseed = 7\n[loss]\nalpha = 0.25\n')
    monkeypatch.chdir(tmp_path)
    return runs


@pytest.mark.parametrize(
    ("words", "alphas", "seeds"),
    [
        ("run", {"simclr": 0, "intnacl": 1}, [0]),
        ("run --epochs 3 --device cpu --set train.lr=1", {"simclr": 0, "intnacl": 1}, [0]),
        ("run --seeds 3 1 3", {"simclr": 0, "intnacl": 1}, [3, 1]),
        ("run --dataset cifar10 --compare adv intcl adv", {"adv": 1, "intcl": 1}, [0]),
        ("run --preset adv --lr 0.1 --seeds 0 1", {"adv": 1}, [0, 1]),
        ("run --set loss.negatives=g1 loss.tau_plus=0.3 --seeds 2", {"nca-g1": 0}, [2]),
        ("run --set objective=supervised --seeds 2", {"supervised": 0}, [2]),
        ("run --config own.toml --seeds 0 1", {"nca-g2": 0.25}, [0, 1]),
        ("run --config own.toml --compare simclr adv", {"simclr": 0, "adv": 1}, [7]),
        ("run --config own.toml", {"": 0.25}, [7]),
        ("run --preset adv", {"": 1}, [0]),
        ("run --dataset cifar10", {"": 0}, [0]),
        ("run --alpha 1", {"": 1}, [0]),
        ("run --set loss.beta=2 loss.negatives=g2", {"": 0}, [0]),
        ("run --set objective=supervised --seed 4", {"": 0}, [4]),
    ],
)
def test_a_command_means_these_runs(words, alphas, seeds, asked):
    assert exit_code(*words.split()) == 0
    assert {label: config.loss.alpha for label, (config, _) in asked.items()} == alphas
    assert all(found == seeds for _, found in asked.values())


@pytest.mark.parametrize("words", ["run --preset adv", "run --compare adv"])
def test_set_overrides_transfer(words, asked):
    exit_code(*words.split(), "--transfer", "cifar10", "cifar100")
    (config, _) = asked.popitem()[1]
    assert config.evaluation.transfer == ("cifar10", "cifar100")
    exit_code(*words.split(), "--transfer", "cifar10", "--set", "evaluation.transfer=")
    assert asked.popitem()[1][0].evaluation.transfer == ()


def test_a_flag_without_effect_is_named_unless_one_of_several_runs_uses_it(asked):
    with pytest.warns(InputWarning, match=r"loss\.lam=0\.3 has no effect here: it is used with loss.nacl="):
        assert exit_code("run", "--preset", "simclr", "--num-positives", 3, "--lam", 0.3) == 0
    assert exit_code("run", "--compare", "simclr", "intnacl", "--lam", 0.3) == 0


def test_weights_of_the_hub_without_a_network_give_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # otherwise it tries for a minute
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    timms = ("encoder.name=timm:resnet10t", "encoder.pretrained=true")
    done = intnacl("pretrain", "--device", "cpu", "--out", tmp_path / "run", "--set", *timms)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert (
        "encoder.pretrained=true: the weights of 'timm:resnet10t' on the Hugging Face Hub cannot be" in line
    )
    assert line.endswith("Without a network, copy them to a file, and give encoder.pretrained=PATH.")
    assert not (tmp_path / "run").exists()


def test_supervised_is_trained_and_attacked_like_others(tmp_path):
    assert exit_code("supervised", "--device", "cpu", "--out", tmp_path, "--set", *TINY) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["config"]["objective"] == result["protocol"]["objective"] == "supervised"
    assert result["accuracy"]["digits"]["clean"] > 50
    assert all(row["accuracy"] <= row["clean"] for row in result["attacks"])
    assert "accuracy" in json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0])
    assert "supervised on digits" in (tmp_path / "report.html").read_text()


def test_a_comparison_of_presets_and_seeds(tmp_path, capsys):
    words = f"run --compare simclr intnacl --seeds 0 1 --device cpu --out {tmp_path} --batch-size 400 --set"
    assert exit_code(*words.split(), *TINY, "loss.num_positives=2") == 0
    text = capsys.readouterr().out
    assert "mean ± sd of 2 seeds" in text
    written = f"{tmp_path}/comparison.png, {tmp_path}/comparison.json"
    assert f"written: {written}, {tmp_path}/{{simclr,intnacl}}-seed{{0,1}}/report.html\n" in text
    runs = {f"{preset}-seed{seed}" for preset in ("simclr", "intnacl") for seed in (0, 1)}
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == runs
    summary = json.loads((tmp_path / "comparison.json").read_text())
    stored = [json.loads((tmp_path / f"intnacl-seed{seed}/result.json").read_text()) for seed in (0, 1)]
    clean = [result["accuracy"]["digits"]["clean"] for result in stored]
    assert summary["losses"]["intnacl"]["clean"]["values"] == clean
    assert stored[0]["config"]["loss"]["nacl"] == "mixnca"


@pytest.mark.parametrize(("reason", "code"), [(None, 0), ("time", 0), ("terminate", 75), ("interrupt", 130)])
def test_exit_codes(monkeypatch, tmp_path, capsys, reason, code):
    monkeypatch.setattr("intnacl.runs.pretrain.pretrain", lambda *_: reason)
    assert exit_code("pretrain", "--device", "cpu", "--out", tmp_path) == code
    shown = capsys.readouterr().out
    assert ("done:" in shown) == (reason is None)
    assert (f"stopped ({reason})\nresume with: " in shown) == (reason is not None)


def test_the_resume_command_repeats_the_command_line(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/intnacl", "pretrain", "--out", "my run"])
    assert resume_command() == "intnacl pretrain --out 'my run'"
    monkeypatch.setattr(sys, "argv", ["/x/intnacl/__main__.py", "pretrain"])
    assert resume_command() == "python -m intnacl pretrain"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert resume_command() == "torchrun --nproc-per-node 8 -m intnacl pretrain"
