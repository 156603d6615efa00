"""The commands that train as a user meets them."""

import json
from pathlib import Path

import pytest

from command_line import assert_refused, intnacl
from intnacl.cli import app, commands


def test_pretrain_help_shows_examples() -> None:
    result = intnacl("pretrain", "--help")
    assert result.returncode == 0
    for text in ("--max-minutes", "--preset", "torchrun --nproc-per-node 8 -m intnacl pretrain", "--set"):
        assert text in result.stdout


def test_pretrain_takes_flags_a_file_and_settings(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('preset = "adv"\n[train]\nepochs = 7\nlr = 0.002\n')
    result = intnacl(
        "pretrain", "--config", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run"), "--device", "cpu",
        "--epochs", "1", "--batch-size", "400", "--seed", "5", "--alpha", "0.5", "--max-minutes", "9",
        "--set", "loss.temperature=0.3", "encoder.head=hcl", "--set", "train.tensorboard=true",
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


def test_pretrain_ends_mistakes_in_one_line(tmp_path: Path) -> None:
    for arguments, message in {
        ("--set", "train.epoch=3"): "setting='train.epoch' is unknown; did you mean 'train.epochs'?",
        ("--preset", "intnacle"): "preset='intnacle' is unknown; did you mean 'intnacl'?",
        ("--device", "gpu"): "device='gpu' is unknown",
    }.items():
        result = intnacl("pretrain", "--out", str(tmp_path / "run"), *arguments)
        assert result.returncode == 2
        assert result.stderr.startswith(f"intnacl: {message}")
        assert "Traceback" not in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "--preset", "adv", "--transfer", "a", "b"], ("adv", {"evaluation.transfer": ("a", "b")})),
        (["run", "--compare", "adv", "intcl", "--seeds", "3", "1", "--transfer", "a"],
         (None, ("adv", "intcl"), (3, 1), {"evaluation.transfer": ("a",)})),
        (["supervised"], (None, {"objective": "supervised"})),
    ],
)  # fmt: skip
def test_flags_reach_what_a_command_does(
    words: list[str], expected: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[object, ...]] = []
    for name in ("run_command", "compare_command"):
        monkeypatch.setattr(commands, name, lambda flags, *more: calls.append((flags.preset, *more)))
    with pytest.raises(SystemExit):
        app(words)
    assert calls == [expected]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--preset", "simclr", "--compare", "adv"], "--preset simclr and --compare exclude"),
        (["run", "--preset", "simclr", "--set", "evaluation.eps=-1"], r"eps=-1\.0 is out of range"),
        (["supervised", "--preset", "intnacl"], "--preset belongs to contrastive losses"),
        (["supervised", "--alpha", "1"], "--alpha belongs to contrastive losses"),
        (["supervised", "--num-positives", "2"], "--num-positives belongs to contrastive losses"),
        (["supervised", "--set", "train.lr=1", "loss.alpha=1"], "--set loss.alpha belongs to contrastive"),
        (["supervised", "--set", "adversary.eps=0.1"], "--set adversary.eps belongs to contrastive losses"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    assert_refused(arguments, message, tmp_path)
