"""Whole runs from the command line: killed, stopped, told to go on, on one process and on two ranks."""

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from intnacl.training.journal import records
from processes import ENVIRONMENT, SMALL, encoder, finish, kill, log, newest_step, start, wait_until, workers

REFERENCE: dict[int, Path] = {}


@pytest.fixture
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing interrupted."""
    return _reference(tmp_path_factory, 1)


@pytest.fixture
def whole_on_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _reference(tmp_path_factory, 2)


def _reference(factory: pytest.TempPathFactory, ranks: int) -> Path:
    if ranks not in REFERENCE:
        folder = factory.mktemp(f"whole{ranks}") / "run"
        code, text = finish(start(folder, ranks=ranks))
        assert code == 0, text
        REFERENCE[ranks] = folder
    return REFERENCE[ranks]


def test_a_run_folder_is_the_whole_record(whole: Path) -> None:
    assert {path.name for path in whole.iterdir()} == {
        "config.json", "log.jsonl", "checkpoints", "encoder.safetensors", "encoder.sha256", "curves.png",
        "lock",
    }  # fmt: skip
    rows = log(whole)
    assert [row["epoch"] for row in rows] == [1, 2]
    assert [row["step"] for row in rows] == [7, 14]
    assert rows[-1]["knn_train"] > 50
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert rows[-1]["loss"] == pytest.approx(rows[-1]["nacl"] + rows[-1]["robust"], rel=1e-6)


def _reached(folder: Path, step: int) -> bool:
    return newest_step(folder) >= step


def killed_and_resumed(out: Path, whole: Path, kills: int) -> None:
    """SIGKILL a run at random moments, the first before, the others while it trains; then let it end."""
    draw = random.Random()
    for number in range(kills):
        process = start(out)
        begun = (out / "config.json").exists if number == 0 else partial(_reached, out, 10 * number // kills)
        wait_until(begun, process)
        time.sleep(draw.uniform(0, 0.3))
        kill(process)
    code, text = finish(start(out))
    assert code == 0, text
    assert kills == 1 or "going on from step" in text
    assert "damaged" not in text
    assert encoder(out) == encoder(whole)
    assert log(out) == log(whole)
    assert not list((out / "checkpoints").glob(".*"))


def test_sigkill_at_three_random_moments_ends_in_the_same_bytes(tmp_path: Path, whole: Path) -> None:
    killed_and_resumed(tmp_path / "run", whole, kills=3)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sigkill_at_twenty_random_moments_ends_in_the_same_bytes(tmp_path: Path, whole: Path) -> None:
    killed_and_resumed(tmp_path / "run", whole, kills=20)


def test_sigterm_saves_prints_the_command_and_exits_75(tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "run"
    process = start(out, "--max-minutes", "60")
    wait_until(lambda: newest_step(out) > 0, process)
    process.send_signal(signal.SIGTERM)
    code, text = finish(process)
    assert code == 75, text
    assert "stopped (terminate)" in text
    assert "go on with: python -m intnacl pretrain --preset intnacl" in text
    assert text.rstrip().endswith(f"--max-minutes 60 --out {out}")
    assert not (out / "encoder.safetensors").exists()
    code, text = finish(start(out))
    assert code == 0
    assert "going on from step" in text
    assert encoder(out) == encoder(whole)
    assert log(out) == log(whole)


# ---- two ranks -------------------------------------------------------------------------------------------


def test_a_killed_rank_stops_the_others_with_a_clear_message(tmp_path: Path) -> None:
    """Without torchrun, whose agent would end them itself."""
    out = tmp_path / "run"
    port = str(random.randint(20_000, 60_000))

    def rank(number: int) -> subprocess.Popen[str]:
        place = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2"}
        return subprocess.Popen(
            [sys.executable, "-m", "intnacl", *SMALL, "train.epochs=500", "--out", str(out)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=ENVIRONMENT | place | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
        )

    processes = [rank(0), rank(1)]
    wait_until(lambda: newest_step(out) > 0, processes[0])
    kill(processes[1])
    begun = time.monotonic()
    code, text = finish(processes[0], timeout=60)
    assert time.monotonic() - begun < 30
    assert code == 1
    assert text.rstrip().splitlines()[-1].startswith("intnacl: rank 0 lost contact with another rank")
    assert "Traceback" not in text


def test_with_max_restarts_the_run_resumes_by_itself(tmp_path: Path, whole_on_two: Path) -> None:
    out = tmp_path / "run"
    process = start(out, ranks=2, options=("--max-restarts", "2"))
    wait_until(lambda: newest_step(out) >= 4, process)
    os.kill(workers(process)[-1], signal.SIGKILL)
    code, text = finish(process)
    assert code == 0, text
    assert "going on from step" in text
    assert encoder(out) == encoder(whole_on_two)
    assert log(out) == log(whole_on_two)


def test_a_run_goes_on_with_as_many_ranks_as_it_was_begun_with(tmp_path: Path, whole_on_two: Path) -> None:
    out = tmp_path / "run"
    code, text = finish(start(out, "--max-minutes", "0", ranks=2))
    assert (code, newest_step(out)) == (0, 2), text
    code, text = finish(start(out))
    assert code == 2
    assert f"{out} was trained on 2 ranks, and this command has 1. " in text
    assert "go on with 2 (torchrun --nproc-per-node), or take another --out" in text
    code, text = finish(start(out, ranks=2))
    assert code == 0, text
    assert encoder(out) == encoder(whole_on_two)
    code, text = finish(start(out))
    assert code == 0
    assert f"{out} was trained on 2 ranks and stays as it is" in text
    assert [row["ranks"] for row in records(out / "log.jsonl")] == [2, 2]


def test_with_synchronised_norms_it_goes_on_with_any_number(tmp_path: Path) -> None:
    out, sync = tmp_path / "run", "encoder.sync=true"
    code, text = finish(start(out, sync, "--max-minutes", "0", ranks=2))
    assert (code, newest_step(out)) == (0, 2), text
    code, text = finish(start(out, sync))
    assert code == 0, text
    assert "was trained on 2 ranks, and this command has 1: the run goes on" in text
    assert [row["ranks"] for row in records(out / "log.jsonl")] == [1, 1]


@pytest.mark.slow
def test_sigterm_to_torchrun_saves_and_the_same_command_goes_on(tmp_path: Path, whole_on_two: Path) -> None:
    out = tmp_path / "run"
    process = start(out, ranks=2)
    wait_until(lambda: newest_step(out) > 0, process)
    process.send_signal(signal.SIGTERM)
    code, text = finish(process)
    assert code != 0
    assert "stopped (terminate)" in text
    assert "go on with: torchrun --nproc-per-node 2 -m intnacl pretrain" in text
    code, text = finish(start(out, ranks=2))
    assert code == 0, text
    assert encoder(out) == encoder(whole_on_two)
