"""Encoders on disk: they come back as they were, equal ones have equal bytes, nothing else is accepted."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from intnacl.errors import InputError
from intnacl.models.encoders import EncoderConfig, build_model
from intnacl.models.weights import KEY, from_pretrained, save_encoder

CONFIG = EncoderConfig(name="small", mean=(0.4, 0.5, 0.6))


def saved(path: Path, *, adversarial: bool = False, seed: int = 0) -> torch.nn.Module:
    net = build_model(CONFIG, image_size=8, adversarial=adversarial, seed=seed).train()
    net(
        torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    )  # moves the running statistics
    save_encoder(net.encoder, CONFIG, 8, path)
    return net.encoder.eval()


@pytest.mark.parametrize("adversarial", [False, True])
def test_an_encoder_comes_back(tmp_path: Path, adversarial: bool) -> None:
    encoder = saved(tmp_path / "encoder.safetensors", adversarial=adversarial)
    x = torch.rand(4, 3, 8, 8)
    for place in (tmp_path, str(tmp_path / "encoder.safetensors")):
        loaded = from_pretrained(place)
        assert torch.equal(loaded(x), encoder(x))
        assert not loaded.training


def test_equal_encoders_give_equal_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        saved(tmp_path / name, seed=seed)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_others_may_read_the_file(tmp_path: Path) -> None:
    saved(tmp_path / "a")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


def test_adversarial_norms_stay_out(tmp_path: Path) -> None:
    saved(tmp_path / "with", adversarial=True)
    saved(tmp_path / "without")
    assert (tmp_path / "with").read_bytes() == (tmp_path / "without").read_bytes()


def test_a_resnet_has_torchvisions_names(tmp_path: Path) -> None:
    import torchvision
    from safetensors.torch import load_file

    config = EncoderConfig(name="resnet18")
    net = build_model(config, image_size=32, adversarial=True, seed=0)
    save_encoder(net.encoder, config, 32, tmp_path / "e")
    theirs = torchvision.models.resnet18()
    theirs.conv1, theirs.fc = torch.nn.Conv2d(3, 64, 3, bias=False), torch.nn.Identity()
    theirs.load_state_dict(load_file(tmp_path / "e"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist: give a finished run"):
        from_pretrained(tmp_path)


def damaged_files(folder: Path) -> dict[str, Path]:
    saved(folder / "whole")
    whole = (folder / "whole").read_bytes()
    files = {
        name: folder / name
        for name in ("truncated", "empty", "pickle", "foreign", "header", "fields", "shapes")
    }
    files["truncated"].write_bytes(whole[:-100])
    files["empty"].write_bytes(b"")
    files["pickle"].write_bytes(pickle.dumps({"a": 1}))
    tensors = {"a": torch.zeros(2)}
    save_file(tensors, files["foreign"])
    save_file(tensors, files["header"], {KEY: "[]"})
    save_file(tensors, files["fields"], {KEY: json.dumps({"encoder": {"depth": 3}, "image_size": 8})})
    right = {"encoder": {"name": "small", "mean": [0.5] * 3, "std": [0.5] * 3}, "image_size": 8}
    save_file(tensors, files["shapes"], {KEY: json.dumps(right)})
    return files


@pytest.mark.parametrize("name", ["truncated", "empty", "pickle", "foreign", "header", "fields", "shapes"])
def test_a_file_that_is_no_encoder_is_refused_by_name(tmp_path: Path, name: str) -> None:
    path = damaged_files(tmp_path)[name]
    with pytest.raises(InputError, match=f"{name} is no encoder of intnacl, or damaged"):
        from_pretrained(path)
