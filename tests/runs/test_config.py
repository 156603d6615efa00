"""Configurations: layers, text and files as values, mistakes, round trips, and unused settings."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from intnacl.data.augmentations import AUGMENTATIONS
from intnacl.losses.config import PRESETS, LossConfig
from intnacl.runs.config import FREE, SETTINGS, RunConfig, differences, from_dict, to_dict, unused
from intnacl.runs.resolve import RECIPES, ROBUST, ROBUST_CLUSTERS, resolve
from mistakes import must_refuse, refused

WEIGHT = {"weight": "relative"}  # in every recipe


def toml(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def value_of(config: RunConfig, key: str) -> object:
    part, _, name = key.rpartition(".")
    return getattr(getattr(config, part) if part else config, name)


# ---- layers ----------------------------------------------------------------------------------------------


def test_the_data_set_chooses_its_recipe():
    assert (resolve().recipe, resolve().encoder.name) == ("digits", "small")
    cifar = resolve({"dataset": "cifar100"})
    assert (cifar.recipe, cifar.encoder.name, cifar.train.lr, cifar.train.batch_size) == (
        "paper", "resnet18", 3e-4, 256,
    )  # fmt: skip
    assert (cifar.encoder.head, cifar.probe.normalize, cifar.probe.lr) == ("hcl", True, 1e-3)
    assert resolve({"dataset": "tinyimagenet"}).train.batch_size == 128
    assert resolve(recipe="paper").encoder.name == "resnet18"


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_rows_of_the_table(preset):
    assert resolve(preset=preset).loss == LossConfig(**WEIGHT | PRESETS[preset])


def test_flags_override_the_preset_which_overrides_the_file_which_overrides_the_recipe(tmp_path):
    file = toml(tmp_path, "[train]\nlr = 0.5\nepochs = 7\n[loss]\ntemperature = 0.2\nalpha = 3.0\n")
    config = resolve({"train.epochs": 9, "loss.lam": 0.7}, file=file, preset="intnacl")
    assert config.train.lr == 0.5  # file over the recipe's 1e-3
    assert config.train.epochs == 9  # flag over file
    assert config.loss.temperature == 0.2  # no preset sets it
    assert config.loss.alpha == 1.0  # preset over file
    assert config.loss.lam == 0.7  # flag over preset


def test_the_simclr_preset_replaces_the_loss_of_the_file_but_not_its_temperature(tmp_path):
    file = toml(tmp_path, '[loss]\nalpha = 1.0\nnegatives = "g2"\ntemperature = 0.1\n')
    assert resolve(file=file, preset="simclr").loss == LossConfig(temperature=0.1, **WEIGHT)


def test_a_file_may_name_preset_recipe_and_data_set_which_the_command_line_overrides(tmp_path):
    file = toml(tmp_path, 'preset = "intcl"\nrecipe = "paper"\n[loss]\nalpha = 0.5\n')
    config = resolve(file=file)
    assert config.loss == LossConfig(**PRESETS["intcl"] | WEIGHT | {"alpha": 0.5})
    assert config.recipe == "paper"
    config = resolve(file=file, preset="adv", recipe="digits")
    assert config.loss == LossConfig(**PRESETS["adv"])
    assert (config.recipe, config.encoder.name) == ("digits", "small")
    assert resolve({"recipe": "digits"}, file=file).recipe == "digits"
    file = toml(tmp_path, 'dataset = "cifar10"\n')
    assert resolve(file=file).recipe == "paper"
    assert resolve({"dataset": "tinyimagenet"}, file=file).recipe == "tinyimagenet"
    given = resolve({"recipe": "tinyimagenet", "dataset": "cifar100"})  # applied, not only named
    assert given == resolve({"dataset": "cifar100"}, recipe="tinyimagenet")


def test_a_named_augmentation_overrides_settings_of_the_file(tmp_path):
    file = toml(tmp_path, "[augment]\nstrength = 0.1\nflip_p = 0.0\n")
    config = resolve({"augment.flip_p": 0.3, "augment": "simclr"}, file=file)
    assert config.augment == replace(AUGMENTATIONS["simclr"], flip_p=0.3)
    assert config.recipe == "custom"


def test_a_recipe_keeps_its_name_if_views_encoder_and_optimiser_are_unchanged():
    own = {"train.epochs": 3, "loss.temperature": 0.1, "seed": 4}
    assert resolve(own).recipe == "digits"
    changes = {"encoder.head": "hcl", "augment.flip_p": 0.5, "adversary.eps": 0.1, "train.optimizer": "sgd"}
    for key, value in (changes | {"train.lr": 0.1}).items():
        assert resolve(own | {key: value}).recipe == "custom"


@pytest.mark.parametrize(
    ("settings", "rate"),
    [
        ({"train.optimizer": "sgd", "train.batch_size": 128}, 0.025),
        ({"train.optimizer": "lars", "objective": "supervised"}, 0.3),
        ({"train.optimizer": "adamw", "dataset": "cifar100"}, 3e-4),
        ({"train.optimizer": "adamw"}, 1e-3),  # the digits' own
        ({"train.optimizer": "sgd", "train.lr": 1e-3}, 1e-3),
        ({"train.optimizer": "sgd", "train.lr": "none"}, 0.05),
        ({"train.batch_size": 512, "dataset": "cifar100"}, 3e-4),
        ({"recipe": "strong"}, 0.12),
        ({"recipe": "knn90", "train.optimizer": "lars"}, 0.6),  # not SGD's
        ({"recipe": "strong", "train.optimizer": "adamw"}, 3e-4),
    ],
)
def test_the_default_rate_is_that_of_the_optimiser_and_is_written_as_a_number(settings, rate):
    for device in (None, torch.device("cpu")):
        assert to_dict(resolve(settings, device=device))["train"]["lr"] == rate
    assert resolve({"dataset": "cifar100", "train.lr": 3e-4}).recipe == "paper"


def test_the_strong_recipes_are_those_of_the_repository_they_cite():
    """github.com/dkobak/simclr-cifar10, README and constants of the script."""
    strong, knn90 = (resolve({"dataset": "cifar10"}, recipe=name) for name in ("strong", "knn90"))
    for config, epochs, rate in ((strong, 100, 0.06), (knn90, 500, 0.03)):
        train, views = config.train, config.augment
        assert (train.epochs, train.batch_size, train.lr) == (epochs, 512, rate * 512 / 256)
        assert (train.optimizer, train.momentum, train.schedule, train.warmup_epochs) == (
            "sgd",
            0.9,
            "cosine",
            0,
        )
        assert (train.weight_decay, train.decay_vectors) == (5e-4, True)
        assert (views.crop_scale, views.grayscale_p, views.blur_p) == ((0.2, 1.0), 0.1, 0.0)
        assert views.factors == (0.4, 0.4, 0.4, 0.1)
        assert (config.encoder.name, config.encoder.head, config.encoder.norm) == (
            "resnet18",
            "1024-128",
            "per_view",
        )
        assert config.loss.temperature == 0.5
    assert (knn90.evaluation.knn_k, knn90.evaluation.knn_weights) == (10, "uniform")
    paper = resolve({"dataset": "cifar10"})
    assert (strong.probe, strong.evaluation) == (paper.probe, paper.evaluation)  # the protocol is the paper's
    preset = resolve({"dataset": "cifar100"}, recipe="strong", preset="intnacl")
    assert (preset.recipe, preset.loss) == ("strong", resolve({"dataset": "cifar100"}, preset="intnacl").loss)


@pytest.mark.parametrize("kind", ["folder", "parquet", "npz"])
def test_own_images_are_trained_on_as_in_the_paper_and_attacked_at_the_usual_radius(kind):
    own, paper = resolve({"dataset": f"{kind}:/x"}), resolve({"dataset": "cifar10"})
    assert (own.recipe, own.evaluation.eps, own.evaluation.attacks) == (
        "own", (8 / 255,), ("fgsm", "pgd_tuned"),
    )  # fmt: skip
    assert len(own.evaluation.fgsm_eps) == 5
    assert own.evaluation.pgd == "pgd_tuned"
    assert differences(own, replace(paper, dataset=own.dataset, evaluation=own.evaluation)) == []
    assert (paper.recipe, paper.evaluation.eps) == ("paper", (0.002,))
    assert (paper.evaluation.attacks, paper.evaluation.pgd) == (("fgsm", "pgd"), "pgd")
    assert resolve({"dataset": f"{kind}:/x"}, recipe="paper").evaluation == paper.evaluation


# ---- values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("train.epochs", "12", 12),
        ("train.epochs", 5.0, 5),
        ("train.lr", "1e-4", 1e-4),
        ("evaluation.eps", "0.002,8/255", (0.002, 8 / 255)),
        ("adversary.eps", "4/255", 4 / 255),
        ("train.online_probe", "true", True),
        ("train.compile", "None", None),
        ("train.compile", "false", False),
        ("train.clip", "none", None),
        ("train.clip", "1.5", 1.5),
        ("encoder.mean", "0.1,0.2, 0.3", (0.1, 0.2, 0.3)),
        ("encoder.mean", [0, 1, 0], (0.0, 1.0, 0.0)),
        ("evaluation.transfer", "cifar10,cifar100", ("cifar10", "cifar100")),
        ("evaluation.transfer", "", ()),
        ("root", "/data", "/data"),
        ("seed", -(2**63), -(2**63)),
    ],
)
def test_text_is_converted_to_the_type_of_the_setting(key, text, value):
    assert value_of(resolve({key: text}), key) == value


test_mistakes_are_named = refused(
    resolve,
    # The wrong type
    ({"train.epochs": "many"}, r"train\.epochs='many' is not a whole number"),
    ({"train.epochs": 1.5}, "is not a whole number"),
    ({"train.epochs": float("inf")}, "is not a whole number"),
    ({"train.epochs": True}, "is not a whole number"),
    ({"encoder.pretrained": 5}, "is not true, false or a text"),
    ({"encoder.pretrained": True}, "is for encoders of timm, not for 'small': take encoder.name=timm:NAME"),
    ({"train.lr": "fast"}, "is not a number"),
    ({"adversary.eps": "8/0"}, "is not a number"),
    ({"adversary.eps": "8/2/255"}, "is not a number"),
    ({"train.lr": True}, "is not a number"),
    ({"train.online_probe": "yes"}, "is not true or false"),
    ({"encoder.name": 18}, "is not a text"),
    ({"dataset": ["digits"]}, "is not a text"),
    ({"encoder.mean": 0.5}, "is not a list of 3, each a number"),
    ({"encoder.mean": "0.5,0.5"}, "is not a list of 3, each a number"),
    ({"augment.crop_scale": "[0.2,1.0]"}, "with commas between and no brackets"),
    ({"evaluation.eps": "a"}, "is not a list, each a number"),
    # Out of range: the part's own check
    ({"loss.lam": "2"}, r"lam=2\.0 is out of range"),
    ({"train.epochs": "0"}, r"train\.epochs=0 must be 1 or more"),
    ({"adversary.eps": "9"}, r"adversary eps=9\.0 must be above 0"),
    ({"objective": "x"}, "objective='x' is unknown"),
    ({"seed": 2**63}, "seed=9223372036854775808 is out of range"),
    # Unknown names
    ({"train.epoch": 1}, r"setting='train\.epoch' is unknown; did you mean 'train\.epochs'"),
    ({"loss.temprature": 1}, r"did you mean 'loss\.temperature'"),
    ({"lr": 1}, r"setting='lr' is unknown; did you mean 'train\.lr' or 'probe\.lr'"),
    ({"epoch": 1}, r"did you mean 'train\.epochs' or 'probe\.epochs'"),
    ({"stepz": 1}, r"did you mean 'adversary\.steps'"),
    ({"probe.lr": "1e38"}, r"lr=1e\+38 must be a number .* to 1e20"),
    ({"probe.l2": "1e38"}, r"l2=1e\+38 must be a number .* to 1e20"),
    ({"recipe": "digit"}, "recipe='digit' is unknown; did you mean 'digits'"),
    ({"augment": "simcl"}, "did you mean 'simclr'"),
)


@pytest.mark.parametrize("key", ["dataset", "evaluation.transfer"])
def test_names_of_data_sets_are_checked_before_loading(key, tmp_path):
    must_refuse(resolve, {key: "cifar1O"}, "dataset='cifar1O' is unknown; did you mean 'cifar10'")
    must_refuse(resolve, {key: "folder"}, "write 'folder:PATH'")
    must_refuse(resolve, {key: str(tmp_path)}, f"is a path: write 'folder:{tmp_path}'")
    record = to_dict(resolve({key: f"folder:{tmp_path}"}))
    record["dataset"] = "svhn"  # from another version; it can be read, only not loaded
    assert from_dict(record).dataset == "svhn"


# ---- files -----------------------------------------------------------------------------------------------


def test_a_file_is_utf_8_in_any_locale_and_may_come_from_windows(tmp_path):
    file = toml(tmp_path, 'dataset = "folder:/Bücher"\n')
    code = f"from intnacl.runs.resolve import *; print(ascii(resolve(file=Path({str(file)!r})).dataset))"
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    run = [sys.executable, "-c", code]
    out = subprocess.run(run, env=os.environ | plain, capture_output=True, text=True, check=True).stdout
    assert out.strip() == ascii("folder:/Bücher")
    file.write_bytes(b"\xef\xbb\xbf" + b'preset = "intcl"\r\n[train]\r\nepochs = 3\r\n')
    config = resolve(file=file)
    assert (config.loss.alpha, config.train.epochs) == (1.0, 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[evaluation]\neps = 0.1\n", r"is not a list, each a number, in brackets\."),
        (b"[evaluation]\neps = [0.1, true]\n", r"is not a list, each a number, in brackets\."),
        (b"[[tables]]\nname = 'mine'\n", r"run\.toml is a grid of tables: .*`intnacl reproduce --config`"),
        (b"train = = 3", r"run\.toml is not TOML"),
        (b"\xff\xfe\x00", r"run\.toml is not TOML"),
        (b"[train]\nepoch = 3\n", r"did you mean 'train\.epochs'"),
        (None, r"run\.toml: No such file"),
    ],
)
def test_a_wrong_file_is_named(content, message, tmp_path):
    if content is not None:
        (tmp_path / "run.toml").write_bytes(content)
    must_refuse(resolve, message, file=tmp_path / "run.toml")


# ---- round trip and comparison ---------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name not in ROBUST_CLUSTERS])
@pytest.mark.parametrize("preset", ["simclr", "intnacl"])
def test_a_written_configuration_reads_back_equal(recipe, preset):
    config = resolve(recipe=recipe, preset=None if recipe in ROBUST else preset, device=torch.device("cpu"))
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


def test_a_run_of_an_earlier_version_decays_the_same_parameters():
    recorded = Path(__file__).parents[2] / "results" / "recipe" / "epochs30-hclhead-dhn-decay-seed0"
    decayed = from_dict(json.loads((recorded / "config.json").read_bytes()))
    assert (decayed.train.weight_decay, decayed.train.decay_vectors) == (1e-6, True)
    new = resolve({"train.weight_decay": 1e-6})
    for config in (new, resolve({"train.optimizer": "lars", "train.weight_decay": 1e-6}), resolve()):
        assert not from_dict(to_dict(config)).train.decay_vectors
        old = to_dict(config)
        del old["train"]["decay_vectors"]
        assert differences(from_dict(old), config) == ["train.decay_vectors: True -> False"] * (config is new)


def test_the_former_setting_tensorboard_becomes_a_tracker():
    old = to_dict(resolve())
    del old["train"]["trackers"]
    for given, found in ((False, ()), (True, ("tensorboard",))):
        old["train"]["tensorboard"] = given
        assert (
            from_dict(old).train.trackers
            == resolve({"train.tensorboard": str(given)}).train.trackers
            == found
        )
    must_refuse(resolve, {"train.tensorboard": "yes"}, "train.tensorboard='yes' is not true or false")
    must_refuse(
        resolve, {"train.trackers": "tensorbord"}, "tensorbord' is unknown; did you mean 'tensorboard'"
    )


def test_every_setting_can_be_set_to_its_own_value():
    config = resolve(preset="intnacl")
    assert resolve({key: value_of(config, key) for key in SETTINGS}, preset="simclr") == config
    assert to_dict(RunConfig())["loss"].keys() == LossConfig.__dataclass_fields__.keys()


def test_differences_name_the_settings_without_the_free_ones():
    old = resolve()
    new = replace(old, seed=3, root="/x", train=replace(old.train, lr=0.5, keep=9, compile=True))
    assert differences(old, new) == ["seed: 0 -> 3", "train.lr: 0.001 -> 0.5"]
    assert differences(old, old) == []
    assert {
        "recipe", "root", "train.compile", "train.cuda_graph", "train.monitor_epochs", "train.save_minutes",
        "train.save_steps", "train.keep", "train.trackers", "train.online_probe", "train.workers",
        "distill.teacher_sha256", "max_broken",
    } == FREE  # fmt: skip


# ---- unused settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "name", "need"),
    [
        ({"loss.num_positives": 3}, "loss.lam", "loss.nacl=mixnca and loss.num_positives above 1"),
        ({"loss.nacl": "mixnca"}, "loss.lam", "loss.nacl=mixnca and loss.num_positives above 1"),
        ({}, "loss.nacl", "loss.num_positives above 1"),
        ({}, "adversary.eps", "loss.alpha above 0"),
        ({}, "loss.tau_plus", "loss.negatives=g1 or g2"),
        ({"loss.negatives": "g1"}, "loss.beta", "loss.negatives=g2"),
        ({"loss.alpha": 1.0}, "loss.detach_weight", "loss.weight=loss and loss.alpha above 0"),
        ({"objective": "supervised", "loss.alpha": 1.0}, "adversary.eps", "objective=contrastive"),
    ],
)
def test_an_unused_setting_names_the_settings_that_would_use_it(settings, name, need):
    assert unused(resolve(settings))[name] == need


@pytest.mark.parametrize("value", ['""', "[]", "{}", "3", "false"])
def test_an_empty_setting_does_not_mean_the_default(tmp_path, value):
    for key in ("preset", "recipe"):
        told = rf"{key}=.* is unknown.*Choose one of: .*(simclr|paper)"
        must_refuse(lambda text: resolve(file=toml(tmp_path, text)), f"{key} = {value}", told)
    assert resolve(file=toml(tmp_path, "[loss]")) == resolve()
    must_refuse(resolve, r"train\.lr=\{\} is not a number", file=toml(tmp_path, "[train]\nlr = {}"))
