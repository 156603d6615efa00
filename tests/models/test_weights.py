"""Encoders on disk: they load unchanged, equal ones have equal bytes, nothing else is accepted."""

import json
import os
import pickle
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from intnacl.models.encoders import EncoderConfig, build_model
from intnacl.models.weights import KEY, clean_state, read_header, save_encoder
from intnacl.runs.opened import from_pretrained
from mistakes import must_refuse

CONFIG = EncoderConfig(name="small", mean=(0.4, 0.5, 0.6))


def saved(path: Path, *, adversarial: bool = False, seed: int = 0) -> torch.nn.Module:
    net = build_model(CONFIG, image_size=8, adversarial=adversarial, seed=seed).train()
    net(torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(seed)))  # moves the statistics
    save_encoder(net.encoder, CONFIG, 8, path)
    return net.encoder.eval()


@pytest.mark.parametrize("adversarial", [False, True])
def test_a_saved_encoder_loads_unchanged(tmp_path, adversarial):
    encoder = saved(tmp_path / "encoder.safetensors", adversarial=adversarial)
    x = torch.rand(4, 3, 8, 8)
    for place in (tmp_path, str(tmp_path / "encoder.safetensors")):
        loaded = from_pretrained(place)
        assert torch.equal(loaded(x), encoder(x))
        assert not loaded.training


def test_widths_and_stems_are_restored_and_default_ones_are_not_written(tmp_path):
    headers = []
    for width, stem in ((4, "imagenet"), (64, "cifar")):
        config = EncoderConfig(width=width, stem=stem)
        encoder = build_model(config, image_size=32, adversarial=False, seed=0).encoder.eval()
        save_encoder(encoder, config, 32, tmp_path / "encoder.safetensors")
        loaded = from_pretrained(tmp_path)
        x = torch.rand(2, 3, 32, 32)
        assert torch.equal(loaded(x), encoder(x))
        assert loaded(x).shape == (2, 8 * width)
        headers.append(read_header(tmp_path)["encoder"])
    assert (headers[0].pop("width"), headers[0].pop("stem")) == (4, "imagenet")
    assert headers[0] == headers[1]  # as files are that know neither setting
    must_refuse(lambda: EncoderConfig(name="small", width=4), "encoder.width=4 is for resnet18, resnet34")


def test_equal_encoders_give_equal_bytes_without_the_adversarial_norms(tmp_path):
    cases = {"a": (0, False), "same": (0, False), "with": (0, True), "other": (1, False)}
    for name, (seed, adversarial) in cases.items():
        saved(tmp_path / name, seed=seed, adversarial=adversarial)
    a, same, attacked, other = ((tmp_path / name).read_bytes() for name in cases)
    assert a == same == attacked != other
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644  # others may read it


def one_tensor(header: object) -> bytes:
    return save({"a": torch.zeros(2)}, {KEY: json.dumps(header)})


RIGHT = {"encoder": {"name": "small", "mean": [0.5] * 3, "std": [0.5] * 3}, "image_size": 8}
DAMAGED = {
    "truncated": lambda whole: whole[:-100],
    "empty": lambda _: b"",
    "pickle": lambda _: pickle.dumps({"a": 1}),
    "foreign": lambda _: save({"a": torch.zeros(2)}),
    "header": lambda _: one_tensor([]),
    "fields": lambda _: one_tensor({"encoder": {"depth": 3}, "image_size": 8}),
    "shapes": lambda _: one_tensor(RIGHT),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_files_that_are_not_encoders_are_refused_by_name(tmp_path, name):
    must_refuse(from_pretrained, tmp_path, "does not exist: give a finished run")
    saved(tmp_path / "whole")
    (tmp_path / name).write_bytes(DAMAGED[name]((tmp_path / "whole").read_bytes()))
    must_refuse(from_pretrained, tmp_path / name, f"{name} is not an encoder of intnacl, or damaged")


def test_flipped_bits_are_found_by_the_checksum_beside_the_file(tmp_path):
    saved(file := tmp_path / "encoder.safetensors")
    check = ["sha256sum", "--check", "encoder.sha256"]
    subprocess.run(check, cwd=tmp_path, check=True, capture_output=True)
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    must_refuse(from_pretrained, tmp_path, r"encoder.safetensors is damaged: .* delete it and repeat the run")


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes")
def test_any_file_name_is_read_and_a_pipe_does_not_block(tmp_path):
    encoder = saved(tmp_path / "\udcff\n.safetensors")
    loaded = from_pretrained(tmp_path / "\udcff\n.safetensors")
    assert all(a.equal(b) for a, b in zip(encoder.parameters(), loaded.parameters(), strict=False))
    os.mkfifo(tmp_path / "encoder.safetensors")
    must_refuse(from_pretrained, tmp_path, r"encoder\.safetensors is not a regular file but a pipe")


@pytest.mark.parametrize(
    "change", [{"image_size": []}, {"image_size": "8"}, {"encoder": {"name": 5}}, {"data": 1}]
)
def test_headers_of_wrong_types_are_named(tmp_path, change):
    net = build_model(CONFIG, image_size=8, adversarial=False, seed=0)
    header = {"encoder": asdict(CONFIG), "image_size": 8, "data": None}
    header |= {
        key: {**header[key], **value} if isinstance(value, dict) else value for key, value in change.items()
    }
    (tmp_path / "x.safetensors").write_bytes(save(clean_state(net.encoder), {KEY: json.dumps(header)}))
    for read in (from_pretrained, read_header):
        must_refuse(
            read, tmp_path / "x.safetensors", r"x\.safetensors is not an encoder of intnacl, or damaged"
        )
