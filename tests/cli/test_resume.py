"""Whole runs from the command line: killed, stopped and resumed, in one process and on two ranks."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from intnacl.training.journal import records
from processes import encoder, finish, kill, log, newest_step, start, wait_until, workers
from wandb_files import offline, read_run, runs


def _reference(factory: pytest.TempPathFactory, ranks: int) -> Path:
    folder = factory.mktemp(f"whole{ranks}") / "run"
    finish_well(start(folder, ranks=ranks))
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing interrupted."""
    return _reference(tmp_path_factory, 1)


@pytest.fixture(scope="module")
def whole_on_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _reference(tmp_path_factory, 2)


def finish_well(process: subprocess.Popen[str]) -> str:
    """Return the output of a run that ends with exit code 0."""
    code, text = finish(process)
    assert code == 0, text
    return text


def test_a_run_folder_is_the_whole_record(whole):
    assert {path.name for path in whole.iterdir()} == {
        "config.json", "log.jsonl", "checkpoints", "encoder.safetensors", "encoder.sha256", "curves.png",
        "lock", "projection.safetensors",
    }  # fmt: skip
    rows = log(whole)
    assert [row["epoch"] for row in rows] == [1, 2]
    assert [row["step"] for row in rows] == [7, 14]
    assert rows[-1]["knn_train"] > 50
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert rows[-1]["loss"] == pytest.approx(rows[-1]["nacl"] + rows[-1]["robust"], rel=1e-6)


def killed_and_resumed(out: Path, whole: Path, kills: int) -> None:
    """SIGKILL a run at random moments, first before and then during training; then let it finish."""
    draw, begun = random.Random(), (out / "config.json").exists
    for number in range(kills):
        process, step = start(out), 10 * number // kills
        wait_until(lambda step=step: newest_step(out) >= step if step else begun(), process)
        time.sleep(draw.uniform(0, 0.3))
        kill(process)
    text = finish_well(start(out))
    assert kills == 1 or "going on from step" in text
    assert "damaged" not in text
    assert encoder(out) == encoder(whole)
    assert log(out) == log(whole)
    assert not list((out / "checkpoints").glob(".*"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_sigkill_at_random_moments_ends_in_the_same_bytes(tmp_path, whole, kills):
    killed_and_resumed(tmp_path / "run", whole, kills)


def test_sigterm_saves_prints_the_command_and_exits_75(tmp_path, whole):
    out = tmp_path / "run"
    process = start(out, "--max-minutes", "60")
    wait_until(lambda: newest_step(out) > 0, process)
    process.send_signal(signal.SIGTERM)
    code, text = finish(process)
    assert code == 75, text
    assert "stopped (terminate)" in text
    assert "resume with: python -m intnacl pretrain --preset intnacl" in text
    assert text.rstrip().endswith(f"--max-minutes 60 --out {out}")
    assert not (out / "encoder.safetensors").exists()
    code, text = finish(start(out))
    assert code == 0
    assert "going on from step" in text
    assert encoder(out) == encoder(whole)
    assert log(out) == log(whole)


def test_a_killed_rank_stops_the_others_with_a_clear_message(tmp_path):
    """Without torchrun, whose agent would end them itself."""
    out = tmp_path / "run"
    port = str(random.randint(20_000, 60_000))

    def rank(number: int) -> subprocess.Popen[str]:
        place = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2"}
        return start(out, "train.epochs=500", **place, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)

    processes = [rank(0), rank(1)]
    wait_until(lambda: newest_step(out) > 0, processes[0])
    kill(processes[1])
    begun = time.monotonic()
    code, text = finish(processes[0], timeout=60)
    assert time.monotonic() - begun < 30
    assert code == 1
    assert text.rstrip().splitlines()[-1].startswith("intnacl: rank 0 lost contact with another rank")
    assert "Traceback" not in text


def test_with_max_restarts_the_run_resumes_by_itself(tmp_path, whole_on_two):
    out = tmp_path / "run"
    process = start(out, ranks=2, options=("--max-restarts", "2"))
    wait_until(lambda: newest_step(out) >= 4, process)
    os.kill(workers(process)[-1], signal.SIGKILL)
    assert "going on from step" in finish_well(process)
    assert encoder(out) == encoder(whole_on_two)
    assert log(out) == log(whole_on_two)


def test_a_run_resumes_on_as_many_ranks_as_it_started_with(tmp_path, whole_on_two):
    out, tracked = tmp_path / "run", ("train.trackers=tensorboard,wandb",)
    with offline(tmp_path) as environment:
        finish_well(start(out, *tracked, "--max-minutes", "0", ranks=2, **environment))
    assert newest_step(out) == 2
    code, text = finish(start(out))
    assert code == 2
    assert f"{out} was trained on 2 ranks, and this command has 1. " in text
    assert "resume with 2 (torchrun --nproc-per-node), or choose another --out" in text
    with offline(tmp_path) as environment:
        finish_well(start(out, *tracked, ranks=2, **environment))
    assert encoder(out) == encoder(whole_on_two)
    assert f"{out} was trained on 2 ranks and stays as it is" in finish_well(start(out))
    assert [row["ranks"] for row in records(out / "log.jsonl")] == [2, 2]
    begun, resumed = map(read_run, runs(out))  # the main rank's alone
    assert begun[0] == resumed[0] == (out / "id").read_text()
    losses = {row["epoch"]: row["loss"] for row in log(out)}
    assert (begun[2], {epoch: row["loss"] for epoch, row in resumed[2].items()}) == ({}, losses)
    assert len(list((out / "tensorboard").iterdir())) == 1


def test_with_synchronised_norms_a_run_resumes_on_any_number_of_ranks(tmp_path):
    out, sync = tmp_path / "run", "encoder.sync=true"
    finish_well(start(out, sync, "--max-minutes", "0", ranks=2))
    assert newest_step(out) == 2
    told = "was trained on 2 ranks, and this command has 1: the run resumes"
    assert told in finish_well(start(out, sync))
    assert [row["ranks"] for row in records(out / "log.jsonl")] == [1, 1]


@pytest.mark.slow
def test_sigterm_to_torchrun_saves_and_the_same_command_resumes(tmp_path, whole_on_two):
    out = tmp_path / "run"
    process = start(out, ranks=2)
    wait_until(lambda: newest_step(out) > 0, process)
    process.send_signal(signal.SIGTERM)
    code, text = finish(process)
    assert code != 0
    assert "stopped (terminate)" in text
    assert "resume with: torchrun --nproc-per-node 2 -m intnacl pretrain" in text
    code, text = finish(start(out, ranks=2))
    assert code == 0, text
    assert encoder(out) == encoder(whole_on_two)
