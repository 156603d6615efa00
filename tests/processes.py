"""Real runs of `intnacl pretrain` in separate processes, for tests that kill them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from intnacl.training.journal import TIMES

# A few seconds on one core: adversarial views, mixing, batch norm, a checkpoint every second update.
SMALL = (
    "pretrain", "--preset", "intnacl", "--device", "cpu", "--epochs", "2", "--batch-size", "200",
    "--num-positives", "2", "--set", "train.save_steps=2", "train.monitor_epochs=1", "encoder.head=hcl",
)  # fmt: skip
ENVIRONMENT = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONUNBUFFERED": "1"}


def start(
    out: Path,
    *more: str,
    command: tuple[str, ...] = SMALL,
    ranks: int = 1,
    options: tuple[str, ...] = (),
    **environment: str,
) -> subprocess.Popen[str]:
    """Start a run in the folder `out`, under torchrun if it has several ranks."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *options]
    return subprocess.Popen(
        [
            sys.executable,
            *(launcher if ranks > 1 else []),
            "-m",
            "intnacl",
            *command,
            *more,
            "--out",
            str(out),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=ENVIRONMENT | environment,
    )


def finish(process: subprocess.Popen[str], timeout: float = 200) -> tuple[int, str]:
    """Return the exit code and the whole output."""
    text, _ = process.communicate(timeout=timeout)
    return process.returncode, text


def wait_until(ready: Callable[[], object], process: subprocess.Popen[str], timeout: float = 100) -> None:
    """Wait until `ready` is true; the run must not end before."""
    end = time.monotonic() + timeout
    while not ready():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end, "nothing happens"
        time.sleep(0.01)


def newest_step(folder: Path) -> int:
    """Return the step of the newest checkpoint, 0 if there is none."""
    return max([int(path.name[5:]) for path in folder.glob("checkpoints/step-*")], default=0)


def workers(process: subprocess.Popen[str]) -> list[int]:
    """Return the process ids of the ranks below torchrun."""
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def kill(process: subprocess.Popen[str]) -> None:
    """End a run by SIGKILL, which acts like a crash."""
    process.send_signal(signal.SIGKILL)
    process.communicate()


def log(folder: Path) -> list[dict]:
    """Return the records of the log without times."""
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


def encoder(folder: Path) -> bytes:
    return (folder / "encoder.safetensors").read_bytes()
