"""The configuration: layers, files, round trips, and what makes two runs different."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from intnacl.data.augmentations import AUGMENTATIONS
from intnacl.errors import InputError
from intnacl.losses.config import PRESETS, LossConfig
from intnacl.runs.config import FREE, SETTINGS, RunConfig, differences, from_dict, to_dict
from intnacl.runs.resolve import RECIPES, resolve

WEIGHT = {"weight": "relative"}  # of every recipe


def toml(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


# ---- layers ----------------------------------------------------------------------------------------------


def test_the_data_set_chooses_its_recipe() -> None:
    assert (resolve().recipe, resolve().encoder.name) == ("digits", "small")
    cifar = resolve({"dataset": "cifar100"})
    assert (cifar.recipe, cifar.encoder.name, cifar.train.lr, cifar.train.batch_size) == (
        "paper", "resnet18", 3e-4, 256,
    )  # fmt: skip
    assert (cifar.encoder.head, cifar.probe.normalize, cifar.probe.lr) == ("hcl", True, 1e-3)
    assert resolve({"dataset": "tinyimagenet"}).train.batch_size == 128
    assert resolve(recipe="paper").encoder.name == "resnet18"


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_rows_of_the_table(preset: str) -> None:
    assert resolve(preset=preset).loss == LossConfig(**WEIGHT | PRESETS[preset])


def test_flags_over_preset_over_file_over_recipe(tmp_path: Path) -> None:
    file = toml(tmp_path, "[train]\nlr = 0.5\nepochs = 7\n[loss]\ntemperature = 0.2\nalpha = 3.0\n")
    config = resolve({"train.epochs": 9, "loss.lam": 0.7}, file=file, preset="intnacl")
    assert config.train.lr == 0.5  # file over the recipe's 1e-3
    assert config.train.epochs == 9  # flag over file
    assert config.loss.temperature == 0.2  # presets say nothing about it
    assert config.loss.alpha == 1.0  # preset over file
    assert config.loss.lam == 0.7  # flag over preset


def test_the_simclr_preset_undoes_the_files_loss_but_not_its_temperature(tmp_path: Path) -> None:
    file = toml(tmp_path, '[loss]\nalpha = 1.0\nnegatives = "g2"\ntemperature = 0.1\n')
    assert resolve(file=file, preset="simclr").loss == LossConfig(temperature=0.1, **WEIGHT)


def test_a_file_may_name_preset_and_recipe_and_change_them(tmp_path: Path) -> None:
    file = toml(tmp_path, 'preset = "intcl"\nrecipe = "paper"\n[loss]\nalpha = 0.5\n')
    config = resolve(file=file)
    assert config.loss == LossConfig(**PRESETS["intcl"] | WEIGHT | {"alpha": 0.5})
    assert config.recipe == "paper"


def test_the_command_line_wins_over_the_files_preset_and_recipe(tmp_path: Path) -> None:
    file = toml(tmp_path, 'preset = "intcl"\nrecipe = "paper"\n')
    config = resolve(file=file, preset="adv", recipe="digits")
    assert config.loss == LossConfig(**PRESETS["adv"])
    assert config.recipe == "digits"
    assert config.encoder.name == "small"
    assert resolve({"recipe": "digits"}, file=file).recipe == "digits"


def test_the_file_may_name_the_data_set_whose_recipe_counts(tmp_path: Path) -> None:
    file = toml(tmp_path, 'dataset = "cifar10"\n')
    assert resolve(file=file).recipe == "paper"
    assert resolve({"dataset": "tinyimagenet"}, file=file).recipe == "tinyimagenet"


def test_a_named_augmentation_of_the_command_line_goes_over_the_files_settings(tmp_path: Path) -> None:
    file = toml(tmp_path, "[augment]\nstrength = 0.1\nflip_p = 0.0\n")
    config = resolve({"augment.flip_p": 0.3, "augment": "simclr"}, file=file)
    assert config.augment == replace(AUGMENTATIONS["simclr"], flip_p=0.3)


def test_a_named_augmentation() -> None:
    config = resolve({"augment": "simclr"})
    assert config.augment == AUGMENTATIONS["simclr"]
    assert config.recipe == "custom"
    with pytest.raises(InputError, match="did you mean 'simclr'"):
        resolve({"augment": "simcl"})


@pytest.mark.parametrize(
    ("change", "recipe"),
    [
        ({"encoder.head": "hcl"}, "custom"),
        ({"augment.flip_p": 0.5}, "custom"),
        ({"adversary.eps": 0.1}, "custom"),
        ({"train.optimizer": "sgd"}, "custom"),
        ({"train.lr": 0.1}, "custom"),
        ({"train.epochs": 3, "loss.temperature": 0.1, "seed": 4}, "digits"),
    ],
)
def test_a_recipe_keeps_its_name_while_views_encoder_and_optimiser_are_its_own(
    change: dict, recipe: str
) -> None:
    assert resolve(change).recipe == recipe


def test_auto_settings_are_decided_for_the_device() -> None:
    train = resolve(device=torch.device("cpu")).train
    assert (train.precision, train.compile, train.cuda_graph) == ("fp32", False, False)
    train = resolve({"train.compile": False}, device=torch.device("cuda")).train
    assert (train.precision, train.compile, train.cuda_graph) == ("bf16", False, True)


# ---- mistakes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("train.epoch", "train.epochs"),
        ("loss.temprature", "loss.temperature"),
        ("encoder.nam", "encoder.name"),
    ],
)
def test_typos_get_a_suggestion(key: str, near: str) -> None:
    with pytest.raises(InputError, match=f"setting='{key}' is unknown; did you mean '{near}'"):
        resolve({key: "1"})


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("lr", "'train.lr' or 'probe.lr'"),
        ("epoch", "'train.epochs' or 'probe.epochs'"),
        ("stepz", "'adversary.steps'"),
    ],
)
def test_a_setting_without_its_part_is_taken_for_those_of_its_name(key: str, meant: str) -> None:
    with pytest.raises(InputError, match=f"setting='{key}' is unknown; did you mean {meant}"):
        resolve({key: "1"})


def test_a_recipe_among_the_settings_is_applied_not_only_named() -> None:
    assert resolve({"recipe": "tinyimagenet", "dataset": "cifar100"}) == resolve(
        {"dataset": "cifar100"}, recipe="tinyimagenet"
    )
    with pytest.raises(InputError, match="recipe='digit' is unknown; did you mean 'digits'"):
        resolve({"recipe": "digit"})


@pytest.mark.parametrize(
    ("arguments", "near"), [({"preset": "intnacle"}, "intnacl"), ({"recipe": "digit"}, "digits")]
)
def test_unknown_presets_and_recipes_get_a_suggestion(arguments: dict, near: str) -> None:
    with pytest.raises(InputError, match=f"did you mean '{near}'"):
        resolve(**arguments)


@pytest.mark.parametrize("key", ["dataset", "evaluation.transfer"])
def test_data_sets_are_known_before_they_are_loaded(key: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="dataset='cifar1O' is unknown; did you mean 'cifar10'"):
        resolve({key: "cifar1O"})
    with pytest.raises(InputError, match="write 'folder:PATH'"):
        resolve({key: "folder"})
    with pytest.raises(InputError, match=f"is a path: write 'folder:{tmp_path}'"):
        resolve({key: str(tmp_path)})
    config = resolve({key: f"folder:{tmp_path}"})
    record = to_dict(config)
    record["dataset"] = "svhn"  # of another version: only loading it is impossible
    assert from_dict(record).dataset == "svhn"


def test_values_are_checked_by_their_owners() -> None:
    for key, value in {"loss.lam": "2", "train.epochs": "0", "adversary.eps": "9", "objective": "x"}.items():
        with pytest.raises(InputError, match=value):
            resolve({key: value})


def test_a_seed_beyond_64_bits_is_named() -> None:
    assert resolve({"seed": -(2**63)}).seed == -(2**63)
    with pytest.raises(InputError, match="seed=9223372036854775808 is out of range"):
        resolve({"seed": 2**63})


def test_a_file_is_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    file = toml(tmp_path, 'dataset = "folder:Bücher"\n')
    code = (
        "from pathlib import Path; from intnacl.runs.resolve import resolve; "
        f"print(ascii(resolve(file=Path({str(file)!r})).dataset))"
    )
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    run = [sys.executable, "-c", code]
    out = subprocess.run(run, env=os.environ | plain, capture_output=True, text=True, check=True).stdout
    assert out.strip() == ascii("folder:Bücher")


def test_a_file_as_windows_writes_it(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_bytes(b"\xef\xbb\xbf" + b'preset = "intcl"\r\n[train]\r\nepochs = 3\r\n')
    config = resolve(file=tmp_path / "run.toml")
    assert (config.loss.alpha, config.train.epochs) == (1.0, 3)


@pytest.mark.parametrize("value", ["0.1", "[0.1, true]"])
def test_a_list_of_a_file_has_brackets(value: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is not a list, each a number, in brackets\."):
        resolve(file=toml(tmp_path, f"[evaluation]\neps = {value}\n"))


def test_a_grid_is_told_from_a_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"run\.toml is a grid of tables: .*`intnacl reproduce --config`"):
        resolve(file=toml(tmp_path, "[[tables]]\nname = 'mine'\n"))


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.toml: No such file"):
        resolve(file=tmp_path / "none.toml")
    with pytest.raises(InputError, match=r"run\.toml is no TOML"):
        resolve(file=toml(tmp_path, "train = = 3"))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"bytes\.toml is no TOML"):
        resolve(file=tmp_path / "bytes.toml")
    with pytest.raises(InputError, match=r"did you mean 'train\.epochs'"):
        resolve(file=toml(tmp_path, "[train]\nepoch = 3\n"))


# ---- round trip and comparison ---------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("preset", ["simclr", "intnacl"])
def test_what_is_written_comes_back(recipe: str, preset: str) -> None:
    config = resolve(recipe=recipe, preset=preset, device=torch.device("cpu"))
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


def test_the_loss_holds_exactly_the_keywords_of_the_loss() -> None:
    assert to_dict(RunConfig())["loss"].keys() == LossConfig.__dataclass_fields__.keys()


def test_every_setting_can_be_set_to_what_it_is() -> None:
    config = resolve(preset="intnacl")
    values = {}
    for key in SETTINGS:
        part, _, name = key.rpartition(".")
        values[key] = getattr(getattr(config, part) if part else config, name)
    assert resolve(values, preset="simclr") == config


def test_differences_name_the_settings_and_pass_over_the_free_ones() -> None:
    old = resolve()
    new = replace(old, seed=3, root="/x", train=replace(old.train, lr=0.5, keep=9, compile=True))
    assert differences(old, new) == ["seed: 0 -> 3", "train.lr: 0.001 -> 0.5"]
    assert differences(old, old) == []
    assert {
        "recipe", "root", "train.compile", "train.cuda_graph", "train.monitor_epochs", "train.save_minutes",
        "train.save_steps", "train.keep", "train.tensorboard",
    } == FREE  # fmt: skip
