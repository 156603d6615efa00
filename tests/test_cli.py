"""The command line as a user meets it."""

import json
import subprocess
import sys
from pathlib import Path


def intnacl(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m intnacl` and keep what it prints."""
    return subprocess.run(
        [sys.executable, "-m", "intnacl", *arguments], capture_output=True, text=True, timeout=240
    )


def test_help_names_the_program() -> None:
    result = intnacl("--help")
    assert result.returncode == 0
    assert "intnacl" in result.stdout


def test_nca_prints_accuracies_and_draws(tmp_path: Path) -> None:
    result = intnacl("nca", "--dataset", "wine", "--out", str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert "NCA, scikit-learn" in result.stdout
    figures = json.loads((tmp_path / "nca.json").read_text())["spaces"]
    assert figures["NCA, total variation"]["1-NN"] >= figures["NCA, scikit-learn"]["1-NN"]
    assert (tmp_path / "nca.png").stat().st_size > 10_000


def test_bounds_prints_deviations_and_draws(tmp_path: Path) -> None:
    result = intnacl("bounds", "--draws", "100", "--out", str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert "n = 1024" in result.stdout
    assert json.loads((tmp_path / "bounds.json").read_text())["config"]["draws"] == 100
    assert (tmp_path / "bounds.png").stat().st_size > 10_000


def test_bounds_ends_a_mistake_in_one_line() -> None:
    result = intnacl("bounds", "--classes", "1")
    assert result.returncode == 2
    assert result.stderr.startswith("intnacl: classes=1")
    assert "Traceback" not in result.stderr


def test_datasets_lists_names_sizes_and_the_place_of_files(tmp_path: Path) -> None:
    result = intnacl("datasets", "--root", str(tmp_path))
    assert result.returncode == 0
    for word in ("digits", "cifar100", "50,000 + 10,000", "folder:PATH", str(tmp_path), "INTNACL_DATA"):
        assert word in result.stdout


def test_datasets_show_draws_and_tells_the_checksum(tmp_path: Path) -> None:
    result = intnacl("datasets", "show", "digits", "--out", str(tmp_path / "grid.png"), "--rows", "4")
    assert result.returncode == 0, result.stderr
    assert "1,442 pictures, 8×8, 10 classes; sha256 c6fcf5eb" in result.stdout
    assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")


def test_datasets_show_skips_broken_pictures_or_refuses_them(tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "pets").mkdir()
    (tmp_path / "pets" / "bad.png").write_bytes(b"")
    for i in range(3):
        Image.new("RGB", (8, 8), (i, i, i)).save(tmp_path / "pets" / f"{i}.png")
    name, out = f"folder:{tmp_path / 'pets'}", str(tmp_path / "grid.png")
    skipping = intnacl("datasets", "show", name, "--root", str(tmp_path), "--out", out)
    message = f"{name}, train: 1 of 4 pictures are broken: bad.png (empty)\n"
    assert skipping.returncode == 0
    assert skipping.stderr == f"intnacl: warning: {message}"
    assert "3 pictures, 32×32, unlabelled, 1 broken skipped" in skipping.stdout
    strict = intnacl("datasets", "show", name, "--root", str(tmp_path), "--out", out, "--strict")
    assert strict.returncode == 2
    assert strict.stderr == f"intnacl: {message}"


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
    assert lines[0] == "3 updates to go, fp32, eager"
    assert lines[1].startswith("epoch 1/1  nacl ")
    assert lines[2] == f"done: {tmp_path / 'run' / 'encoder.safetensors'}"
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
