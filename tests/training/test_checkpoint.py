"""Checkpoints are complete or absent; damaged ones are named and skipped, hostile ones harmless."""

import dataclasses
import errno
import functools
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from intnacl.errors import InputError, InputWarning
from intnacl.training import checkpoint as checkpoints
from intnacl.training.checkpoint import MODEL, OPTIMIZER, STATE, Checkpoint, Writer, newest, prune, save
from mistakes import must_refuse


def example(step: int) -> Checkpoint:
    return Checkpoint(
        step=step,
        model={"w": torch.full((2, 3), float(step)), "n": torch.tensor(step)},
        optimizer={"state": {0: {"step": torch.tensor(1.0)}}, "scaler": {}},
        info={"seconds": 1.5, "sums": {"loss": 0.1}, "best": [3.0, step]},
    )


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in folder.glob("step-*"))


def found(folder: Path) -> Checkpoint:
    """The newest checkpoint, which is as `example` made it."""
    one = newest(folder)
    assert one is not None
    assert torch.equal(one.model["w"], example(one.step).model["w"])
    assert torch.equal(one.optimizer["state"][0]["step"], torch.tensor(1.0))
    assert one.info == example(one.step).info
    return one


def rewrite(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda path: (path / name).write_bytes(change((path / name).read_bytes()))


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


DAMAGES: dict[str, Callable[[Path], object]] = {
    "another's": lambda path: shutil.copytree(path.with_name("step-000000001"), path, dirs_exist_ok=True)
}
for name in (MODEL, OPTIMIZER, STATE):
    DAMAGES[f"{name} missing"] = lambda path, name=name: (path / name).unlink()
    DAMAGES[f"{name} truncated"] = rewrite(name, lambda data: data[:-7])
    DAMAGES[f"{name} flipped"] = rewrite(name, lambda data: flipped(data, len(data) // 2))
for text in ("[]", "null", "{}", '{"checksums": 3}', '{"checksums": {}}', "\x00"):
    DAMAGES[f"state {text!r}"] = rewrite(STATE, lambda _, text=text: text.encode())


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_named_and_skipped(tmp_path, damage):
    save(tmp_path, example(1))
    damage(save(tmp_path, example(2)))
    with pytest.warns(InputWarning, match=r"step-000000002 is damaged \(.*\) and is skipped"):
        assert found(tmp_path).step == 1
    save(tmp_path, example(2))
    assert found(tmp_path).step == 2, "it is written anew"


@pytest.mark.filterwarnings("ignore:.*is damaged")
def test_every_flipped_bit_of_the_state_is_noticed(tmp_path):
    path = save(tmp_path, example(1)) / STATE
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(flipped(whole, place))
        assert newest(tmp_path) is None or json.loads(path.read_text()) == json.loads(whole), place


class Hostile:
    """A pickle that makes a folder when it is read."""

    def __init__(self, target: Path) -> None:
        self.target = str(target)

    def __reduce__(self) -> tuple:
        return os.mkdir, (self.target,)


@pytest.mark.parametrize("pack", [torch.save, functools.partial(pickle.dump, protocol=2)])
def test_a_hostile_checkpoint_runs_no_code_even_with_valid_checksums(tmp_path, monkeypatch, pack):
    folder, target = tmp_path / "checkpoints", tmp_path / "made"
    save(folder, example(1))
    monkeypatch.setattr(torch, "save", pack)
    save(folder, dataclasses.replace(example(2), optimizer={"state": Hostile(target), "scaler": {}}))
    with pytest.warns(InputWarning, match=r"step-000000002 is damaged \(optimizer.pt holds more than"):
        assert found(folder).step == 1
    assert not target.exists()
    pickle.loads(pickle.dumps(Hostile(target)))
    assert target.exists(), "the pickle is hostile indeed"


def test_pruning_deletes_half_written_checkpoints_but_not_other_folders_or_the_newest(tmp_path):
    save(tmp_path, example(3))
    (save(tmp_path, example(9)) / MODEL).write_bytes(b"")
    save(tmp_path, example(5))
    (tmp_path / ".step-000000002.x7").mkdir()
    (tmp_path / "step-by-step").mkdir()
    prune(tmp_path, 1, best=None, step=5)
    left = ["step-000000005", "step-000000009", "step-by-step"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left
    with pytest.warns(InputWarning, match="step-000000009 is damaged"):
        assert found(tmp_path).step == 5


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    "place", [(checkpoints, "save_file"), (torch, "save"), (os, "fsync")], ids=lambda place: place[1]
)
def test_a_full_disk_leaves_saved_checkpoints_and_the_error_says_what_to_do(tmp_path, monkeypatch, place):
    written = save(tmp_path, example(1)).stat().st_mtime_ns
    monkeypatch.setattr(*place, full)
    must_refuse(save, tmp_path, example(2), r"step-000000002 could not be written: No space.*make room")
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]
    assert save(tmp_path, example(found(tmp_path).step)).stat().st_mtime_ns == written, "written once"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_the_error_of_a_really_full_disk_reaches_the_user(tmp_path, monkeypatch):
    (tmp_path / OPTIMIZER).symlink_to("/dev/full")
    monkeypatch.setattr(checkpoints, "new_folder", lambda path: nullcontext(tmp_path))
    must_refuse(save, tmp_path, example(1), "could not be written: No space left on device")


def test_files_are_synced_before_the_rename_and_the_parent_folder_after_it(tmp_path, monkeypatch):
    events = []
    sync, rename = os.fsync, Path.rename
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append("fsync"), sync(fd)))
    monkeypatch.setattr(Path, "rename", lambda path, to: (events.append("rename"), rename(path, to)))
    save(tmp_path, example(1))
    assert events == ["fsync"] * 3 + ["rename", "fsync"]  # the last is the folder's, which knows the name


class Gate:
    """Replaces `save`: writes a checkpoint, or raises its error, only when the gate is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.begun, self.open, self.error = threading.Semaphore(0), threading.Semaphore(0), error
        self.steps: list[int] = []
        monkeypatch.setattr(checkpoints, "save", self)

    def __call__(self, folder: Path, checkpoint: Checkpoint) -> Path:
        self.begun.release()
        assert self.open.acquire(timeout=60)
        if self.error:
            raise self.error
        self.steps.append(checkpoint.step)
        return save(folder, checkpoint)


def test_one_checkpoint_at_a_time_is_written_as_it_was_when_saved(tmp_path, monkeypatch):
    gate, given = Gate(monkeypatch), example(1)
    with Writer(tmp_path, keep=1) as writer:
        writer.save(given, best=1)
        given.model["w"].fill_(7)
        given.optimizer["state"][0]["step"].fill_(7)
        given.info["sums"]["loss"] = 7
        second = threading.Thread(target=writer.save, args=(example(2), 1))
        second.start()
        assert gate.begun.acquire(timeout=60)
        assert not gate.begun.acquire(timeout=0.2)  # the second waits for the first
        gate.open.release(3)
        second.join(60)
        writer.save(example(3), best=1)
    assert gate.steps == [1, 2, 3]
    assert steps(tmp_path) == [1, 3]  # the best and the last
    shutil.rmtree(tmp_path / "step-000000003")
    assert found(tmp_path).step == 1


def test_python_can_exit_as_soon_as_the_writer_has_finished(tmp_path):
    """A thread that still frees tensors when the interpreter exits would abort the process."""
    code = f"""
import torch
from pathlib import Path
from intnacl.training.checkpoint import Checkpoint, Writer
model = {{str(i): torch.zeros(8) for i in range(4000)}}
with Writer(Path({str(tmp_path)!r}), keep=1) as writer:
    writer.save(Checkpoint(step=1, model=model, optimizer={{"state": model}}, info={{}}), None)
"""
    for _ in range(3):
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr


def test_a_failed_write_is_raised_at_the_next_check_or_save_or_at_the_end(tmp_path, monkeypatch):
    gate, writer = Gate(monkeypatch, InputError("no space left")), Writer(tmp_path, keep=1)
    writer.save(example(1), best=None)
    writer.check()  # nothing is known yet
    gate.open.release(4)
    with pytest.raises(InputError, match="no space left"):
        any(iter(writer.check, True))  # looks until it is raised
    writer.check()  # raised once
    writer.save(example(2), best=None)
    must_refuse(writer.save, example(3), "no space left", best=None)
    writer.save(example(4), best=None)
    with pytest.raises(InputError, match="no space left"), writer:
        pass
    writer.save(example(5), best=None)
    with pytest.raises(KeyError) as raised, writer:
        raise KeyError  # the error of training is not hidden by that of the disk
    assert raised.value.__notes__ == ["In addition, no space left"]


@pytest.mark.timeout(30)
def test_a_checkpoint_that_could_not_be_copied_is_not_waited_for(tmp_path):
    nowhere = {"w": torch.empty(2, device="meta")}  # which holds no numbers
    with pytest.raises(NotImplementedError), Writer(tmp_path, keep=1) as writer:
        writer.save(dataclasses.replace(example(1), model=nowhere), best=None)
    writer.wait()


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_does_not_wait_for_the_disk_nor_forget_what_is_being_written(tmp_path, monkeypatch):
    gate, begun, writer = Gate(monkeypatch), time.monotonic(), Writer(tmp_path / "checkpoints", keep=1)
    writer.save(example(1), best=None)
    assert (tmp_path / "checkpoints").is_dir()  # the run counts as one that has saved
    with pytest.raises(KeyboardInterrupt), writer:
        interrupt()
    with monkeypatch.context() as patch:
        patch.setattr(Future, "exception", interrupt)
        with pytest.raises(KeyboardInterrupt):
            writer.wait()
    assert time.monotonic() - begun < 30  # the gate would open after 60
    gate.open.release()
    writer.wait()
    assert steps(tmp_path / "checkpoints") == [1]
