"""What `run` and `supervised` do: go on, compare, and end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from intnacl.cli.commands import compare_command, compared_configs, is_comparison, run_command
from intnacl.cli.flags import Flags
from intnacl.errors import InputError
from intnacl.training.ranks import Ranks

ALONE = Ranks(0, 1, torch.device("cpu"))
TINY = (
    "train.epochs=1", "train.monitor_epochs=0", "probe.max_iter=20",
    "evaluation.eps=0.02,0.1", "evaluation.attacks=fgsm,pgd", "evaluation.images=32",
)  # fmt: skip


def test_run_goes_on_and_a_finished_run_ends_in_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = Flags(preset="simclr", device="cpu", out=tmp_path / "run", set_=TINY)
    assert run_command(Flags(**vars(flags) | {"max_minutes": 0})) == 0
    assert "go on with:" in capsys.readouterr().out
    assert not (tmp_path / "run" / "result.json").exists()
    assert run_command(flags) == 0
    assert run_command(flags) == 0
    assert "going on" not in capsys.readouterr().out.rpartition("written:")[0].rpartition("written:")[2]


def test_supervised_is_the_same_run_with_another_objective(tmp_path: Path) -> None:
    flags = Flags(device="cpu", out=tmp_path, set_=TINY)
    assert run_command(flags, {"objective": "supervised"}) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["config"]["objective"] == "supervised"
    assert all(row["accuracy"] <= row["clean"] for row in result["attacks"])


def test_a_comparison_of_presets_and_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = Flags(device="cpu", out=tmp_path, batch_size=400, set_=(*TINY, "loss.num_positives=2"))
    assert compare_command(flags, ("simclr", "intnacl"), (0, 1)) == 0
    text = capsys.readouterr().out
    assert "mean ± sd of 2 seeds" in text
    assert str(tmp_path / "comparison.png") in text
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {
        "simclr-seed0", "simclr-seed1", "intnacl-seed0", "intnacl-seed1",
    }  # fmt: skip
    summary = json.loads((tmp_path / "comparison.json").read_text())
    stored = [json.loads((tmp_path / f"intnacl-seed{seed}/result.json").read_text()) for seed in (0, 1)]
    clean = [result["accuracy"]["digits"]["clean"] for result in stored]
    assert summary["losses"]["intnacl"]["clean"]["values"] == clean
    assert stored[0]["config"]["loss"]["nacl"] == "mixnca"


@pytest.mark.parametrize(
    ("flags", "presets", "labels"),
    [
        (Flags(), (), ["simclr", "intnacl"]),
        (Flags(epochs=3), (), ["simclr", "intnacl"]),
        (Flags(dataset="cifar10"), ("adv", "intcl"), ["adv", "intcl"]),
        (Flags(preset="adv", lam=0.1), (), ["adv"]),
        (Flags(set_=("loss.tau_plus=0.3",)), (), ["nca-g0"]),
        (Flags(set_=("objective=supervised",)), (), ["supervised"]),
    ],
)
def test_what_is_compared(flags: Flags, presets: tuple[str, ...], labels: list[str]) -> None:
    assert list(compared_configs(flags, presets, ALONE)) == labels


def test_seeds_of_a_file_are_runs_of_its_own_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.toml").write_text('preset = "intcl"\nseed = 7\n[loss]\nalpha = 0.25\n')
    seen = {}

    def stopped(configs: dict, seeds: list[int], *_: object) -> str:
        seen.update(alphas=[config.loss.alpha for config in configs.values()], seeds=seeds)
        return "time"

    monkeypatch.setattr("intnacl.runs.compare.compare", stopped)
    flags = Flags(config=tmp_path / "own.toml", device="cpu", out=tmp_path)
    assert compare_command(flags, (), (0, 1)) == 0
    assert seen == {"alphas": [0.25], "seeds": [0, 1]}
    assert compare_command(flags, ("simclr", "adv"), ()) == 0
    assert seen == {"alphas": [0.0, 1.0], "seeds": [7]}


def test_what_makes_a_run_a_comparison() -> None:
    assert is_comparison(Flags(), (), ())
    assert is_comparison(Flags(epochs=3, device="cpu", set_=("train.lr=1",)), (), ())
    assert is_comparison(Flags(preset="adv"), (), (0, 1))
    assert is_comparison(Flags(dataset="cifar10"), ("simclr", "adv"), ())
    for flags in (
        Flags(preset="adv"), Flags(dataset="cifar10"), Flags(alpha=1.0), Flags(config=Path("a.toml")),
        Flags(set_=("loss.beta=2",)), Flags(set_=("objective=supervised",)),
    ):  # fmt: skip
        assert not is_comparison(flags, (), ())
    with pytest.raises(InputError, match="--seed 1 and --seeds exclude each other"):
        is_comparison(Flags(seed=1), (), (1, 2))


def test_public_names_are_loaded_when_they_are_asked_for() -> None:
    code = (
        "import sys, intnacl; assert 'torch' not in sys.modules; assert 'IntNaClLoss' in dir(intnacl);"
        "from intnacl import IntNaClLoss; assert IntNaClLoss.__module__ == 'intnacl.losses.integrated';"
        "assert 'intnacl.models.weights' not in sys.modules; intnacl.from_pretrained;"
        "assert 'intnacl.models.weights' in sys.modules; assert not hasattr(intnacl, 'nothing')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_the_loss_and_its_views_need_none_of_the_larger_packages() -> None:
    code = (
        "import sys\n"
        "for name in ('safetensors', 'sklearn', 'matplotlib', 'rich', 'cyclopts', 'PIL', 'jinja2'):\n"
        "    sys.modules[name] = None\n"
        "from intnacl import IntNaClLoss\n"
        "from intnacl.attacks import adversarial_view\n"
        "from intnacl.data.views import mix\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
