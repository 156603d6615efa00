"""A run's folder: its lock, its configuration and its state."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from intnacl.errors import InputError, InputWarning
from intnacl.runs.folder import RunFolder, default_folder, file_name
from intnacl.runs.images import RunImages
from intnacl.runs.resolve import resolve
from mistakes import must_refuse

HOLD = """
import sys, time
from intnacl.runs.folder import RunFolder
with RunFolder(sys.argv[1]).hold(device="cpu") as free:
    print(free, flush=True)
    time.sleep(60)
"""


# ---- one process at a time -------------------------------------------------------------------------------


def test_a_folder_has_one_known_holder_which_may_lock_it_again(tmp_path):
    folder, other = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    assert folder.holder() is None
    with folder.hold(device="cpu") as first, folder.hold() as again:
        assert first
        assert again
        with other.hold() as second:
            assert not second
        who = other.holder()
        assert (who["pid"], who["device"]) == (os.getpid(), "cpu")
        assert abs(who["since"] - time.time()) < 60
        folder.signature.unlink()
        assert folder.holder() is None  # locked, but without a note of the holder yet
    assert folder.holder() is None
    with other.hold() as third:
        assert third


def test_the_lock_of_an_earlier_version_is_respected(tmp_path):
    """It locks the same file, and notes its process there."""
    folder = RunFolder(tmp_path)
    with folder.lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with folder.hold() as free:
            assert not free
        folder.signature.write_text("{")
        assert folder.holder() == {}
    with folder.hold() as free:
        assert free


def test_many_threads_may_look_for_the_holder_at_once(tmp_path):
    """A note left by a killed process does not count as a working process."""
    folder = RunFolder(tmp_path)
    folder.lock.touch()
    folder.signature.write_text('{"pid": 1}')
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: folder.holder(), range(400))) == {None}


def test_sigkill_releases_the_lock(tmp_path):
    folder = RunFolder(tmp_path)
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "True\n"
    with folder.hold() as free:
        assert not free
    assert folder.holder()["pid"] == other.pid
    other.kill()
    other.communicate()
    assert folder.holder() is None  # although its note is still there
    with folder.hold() as free:
        assert free


def fails(number: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", fails(errno.ENOSPC))
    told = r"holder\.json could not be written: No space left"
    with pytest.raises(InputError, match=told), RunFolder(tmp_path).hold():
        pass


def test_a_file_system_without_locks_is_warned_about_if_work_is_shared(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", fails(errno.ENOLCK))
    with pytest.warns(InputWarning, match="one process at a time"), RunFolder(tmp_path).hold(device="cpu"):
        pass
    with RunFolder(tmp_path).hold() as free:  # warnings are errors here
        assert free


# ---- configuration ---------------------------------------------------------------------------------------


def test_another_device_is_the_same_run_unless_the_precision_differs(tmp_path):
    folder, config = RunFolder(tmp_path), resolve(device=torch.device("cpu"))
    folder.begin(config)
    assert not folder.begin(replace(config, train=replace(config.train, cuda_graph=True, compile=True)))
    with pytest.raises(InputError, match=r"train\.precision: 'fp32' -> 'bf16'"):
        folder.begin(replace(config, train=replace(config.train, precision="bf16")))


def test_weights_of_unknown_origin_are_not_a_finished_run(tmp_path):
    RunFolder(tmp_path).encoder.write_bytes(b"somebody's")
    must_refuse(RunFolder(tmp_path).begin, resolve(), r"has an encoder\.safetensors but no config\.json")
    assert [path.name for path in tmp_path.iterdir()] == ["encoder.safetensors"]


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"train": {"epoch": 3}}', '{"train": {"epochs": "x"}}', '{"version": 99}']
)
def test_a_damaged_config_is_named(tmp_path, text):
    RunFolder(tmp_path).config.write_text(text)
    must_refuse(RunFolder(tmp_path).read_config, r"config\.json is damaged, or of another version")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_config_that_is_not_a_file_is_named(tmp_path, make):
    make(RunFolder(tmp_path).config)
    told = r"config\.json is damaged, or of another version: .*not a regular file"
    must_refuse(RunFolder(tmp_path).read_config, told)


def test_begin_is_undone_unless_something_was_trained(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.hold():
        folder.begin(resolve())
        folder.log.touch()
        folder.undo()
    assert not folder.path.exists()
    folder.begin(resolve())
    (folder.path / "notes.txt").touch()
    folder.undo()
    assert [path.name for path in folder.path.iterdir()] == ["notes.txt"]
    folder.begin(resolve())
    folder.log.write_text('{"epoch": 1}\n')
    folder.undo()
    assert folder.config.exists()


# ---- state -----------------------------------------------------------------------------------------------

WHOLE = {"accuracy": {}, "attacks": [], "time_s": {}, "protocol": {}, "config": {}}


def test_states_of_a_run(tmp_path):
    folder, checkpoint = RunFolder(tmp_path), tmp_path / "checkpoints" / "step-000000002"
    assert folder.state() == "empty"
    folder.begin(resolve())
    assert folder.state() == "begun"
    must_refuse(folder.require_encoder, r"has no encoder\.safetensors: train it first")
    checkpoint.mkdir(parents=True)
    assert folder.state() == "begun"
    must_refuse(folder.require_encoder, "not fully trained yet: repeat its `intnacl pretrain`")
    folder.encoder.touch()
    assert folder.state() == "trained"
    folder.result.write_text(json.dumps(WHOLE))
    assert folder.state() == "finished"
    folder.require_encoder()
    folder.encoder.unlink()
    checkpoint.rmdir()
    assert folder.state() == "record"
    told = "is a record without weights: repeat its run with another --out"
    must_refuse(folder.require_encoder, told)


DAMAGES = (
    {"accuracy": {"digits": {"claen": 1.0}}}, {"attacks": [{}]}, {"time_s": {"total": "1"}},
    {"warnings": [1]}, {"protocol": {"images": {"digits": {}}}}, {"config": {"evaluation": {"eps": None}}},
)  # fmt: skip


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"accuracy": {}}', *(json.dumps(WHOLE | damage) for damage in DAMAGES)]
)
def test_a_damaged_result_does_not_count(tmp_path, damage):
    folder = RunFolder(tmp_path)
    assert not folder.is_finished()
    folder.result.write_text(damage)
    assert not folder.is_finished()
    assert folder.read_result() is None


@pytest.mark.parametrize(
    ("settings", "preset", "name"),
    [
        ({}, None, "digits-simclr-1-seed0"),
        ({"seed": 3}, "intnacl", "digits-intnacl-5-seed3"),
        ({"dataset": "folder:a/b"}, "adv", "folder_a_b-adv-1-seed0"),
        ({"objective": "supervised"}, None, "digits-supervised-1-seed0"),
        ({"loss.temperature": 0.1}, "intcl", "digits-intcl-1-seed0"),
        ({"loss.weight": "loss"}, "intcl", "digits-intcl-1-seed0"),
        ({"loss.weight": "one"}, "intcl", "digits-nca-g2-1-seed0"),
        ({"loss.tau_plus": 0.3}, "intcl", "digits-nca-g2-1-seed0"),
    ],
)
def test_folders_are_named_after_the_run(settings, preset, name):
    assert default_folder(resolve(settings, preset=preset)) == Path("runs") / name


def test_relative_paths_are_stored_as_absolute_ones_but_name_the_folder_as_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"dataset": "folder:pets", "root": "data", "evaluation.transfer": ("digits", "npz:x.npz")}
    config = resolve(given)
    assert config.dataset == f"folder:{tmp_path}/pets"
    assert config.root == f"{tmp_path}/data"
    assert config.evaluation.transfer == ("digits", f"npz:{tmp_path}/x.npz")
    assert default_folder(config) == Path("runs/folder_pets-simclr-1-seed0")
    home = resolve({"dataset": "folder:~/pets", "root": "~/data"})
    assert (home.dataset, home.root) == ("folder:~/pets", "~/data")


def test_a_run_with_a_stored_relative_path_resumes_only_from_the_same_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, config = RunFolder(tmp_path / "run"), resolve({"dataset": "folder:pets"})
    folder.begin(replace(config, dataset="folder:pets"))  # as earlier versions did
    assert not folder.begin(config)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    must_refuse(folder.begin, config, r"another configuration:\n  dataset: '.*other/pets' -> ")
    stored = folder.read_config()
    told = r"relative to the folder in which the run was begun, and \S+other/pets "
    must_refuse(RunImages(stored).training, told)


def test_paths_of_data_sets_never_enter_file_names():
    assert file_name("cifar10") == "cifar10"
    first, second = file_name("folder:/a/b"), file_name("folder:/a_b")
    assert first != second
    assert "/" not in first
    assert first.startswith("folder-")
