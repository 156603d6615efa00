"""Streamed runs in separate processes: killed, resumed, and with workers that die."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from intnacl.data import load
from processes import encoder, finish, kill, log, newest_step, start, wait_until
from shards import lengthen_index, write_shards

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Return a function that starts a run on shards of JPEGs: 16 updates, a checkpoint every second."""
    folder = tmp_path_factory.mktemp("shards")
    name = write_shards(folder, 200)

    def begin(out: Path, *more: str, ranks: int = 1) -> subprocess.Popen[str]:
        data = ("--dataset", name, "--root", str(folder / "root"), "--size", "16", "--stream", "always")
        settings = ("train.batch_size=24", "train.workers=2", "encoder.name=small")
        return start(out, *settings, *more, *data, ranks=ranks)

    return begin


@pytest.fixture(scope="module")
def whole(streamed: Start, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    code, text = finish(streamed(out))
    assert code == 0, text
    return out


def decoders(process: subprocess.Popen[str]) -> list[int]:
    """Return the process ids of a run's workers."""
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_run_killed_at_random_moments_ends_in_the_same_bytes_and_leaves_no_process(
    tmp_path, streamed, whole, kills
):
    out, draw = tmp_path / "run", random.Random()
    for number in range(kills):
        process, step = streamed(out), 12 * (number + 1) // kills
        wait_until(lambda step=step: newest_step(out) >= step, process)
        time.sleep(draw.uniform(0, 0.2))
        left = decoders(process)
        kill(process)
        time.sleep(0.2)
        assert not any(map(is_alive, left))
    code, text = finish(streamed(out))
    assert code == 0, text
    assert "going on from step" in text
    assert encoder(out) == encoder(whole)
    assert log(out) == log(whole)


IMAGENET = (
    "pretrain", "--recipe", "imagenet", "--device", "cpu", "--stream", "always", "--epochs", "2",
    "--batch-size", "16", "--set", "train.save_steps=2", "train.monitor_epochs=0", "train.precision=fp32",
    "train.workers=2",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_imagenet_recipe_resumes_to_the_same_bytes(tmp_path):
    """On 200 photographs of 500×375 at 224 pixels: 24 updates of its ResNet-50 at a quarter of the width."""
    name = write_shards(tmp_path / "shards", 200, size=(500, 375))
    narrow = ("encoder.width=16", "--dataset", name, "--root", str(tmp_path / "root"))
    whole, out = tmp_path / "whole", tmp_path / "run"
    code, text = finish(start(whole, *narrow, command=IMAGENET), timeout=900)
    assert code == 0, text
    assert "train: 200 images, 224×224, 4 classes, streamed" in text
    draw = random.Random()
    for step in (1, 8, 18):  # before an epoch ends, and after
        process = start(out, *narrow, command=IMAGENET)
        wait_until(lambda step=step: newest_step(out) >= step, process, timeout=600)
        time.sleep(draw.uniform(0, 2))
        kill(process)
    code, text = finish(start(out, *narrow, command=IMAGENET), timeout=900)
    assert code == 0, text
    assert "going on from step" in text
    assert encoder(out) == encoder(whole)
    assert log(out) == log(whole)
    assert log(out)[-1]["step"] == 24


def test_a_dead_worker_is_named_and_the_run_can_be_resumed(tmp_path, streamed, whole):
    out = tmp_path / "run"
    process = streamed(out)
    wait_until(lambda: newest_step(out) > 0 and len(decoders(process)) == 2, process)
    victim, other = decoders(process)
    os.kill(victim, signal.SIGKILL)
    code, text = finish(process, timeout=60)
    assert code == 1, text
    line = text.rstrip().splitlines()[-1]
    assert line.startswith(f"intnacl: the worker process {victim} that decodes images died"), text
    assert "Traceback" not in text
    assert not is_alive(other)
    code, text = finish(streamed(out))
    assert code == 0, text
    assert encoder(out) == encoder(whole)


def memory(process: subprocess.Popen[str]) -> int:
    """Return the KiB of a run and its workers; shared pages count once."""
    texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in (process.pid, *decoders(process))]
    lines = [line for text in texts for line in text.splitlines() if line.startswith("Pss:")]
    return sum(int(line.split()[1]) for line in lines)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_images(tmp_path):
    name = write_shards(tmp_path, 500)
    used = {}
    for count in (50_000, 1_000_000):
        root = tmp_path / f"root{count}"
        load(name, size=16, root=root, room=0)
        lengthen_index(root, count)
        out, data = tmp_path / f"run{count}", ("--dataset", name, "--root", str(root), "--size", "16")
        settings = ("train.batch_size=32", "train.workers=2", "encoder.name=small", "train.save_steps=200")
        process = start(out, *settings, "train.monitor_epochs=0", *data, "--stream", "always")
        wait_until(lambda out=out: newest_step(out) >= 200, process, timeout=280)
        used[count] = memory(process)
        kill(process)
    print(used)
    assert used[1_000_000] <= 1.1 * used[50_000], used
