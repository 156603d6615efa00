"""The command line as a user calls it."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from intnacl.cli import app
from intnacl.errors import InputError

# Settings of a run that takes seconds.
TINY = (
    "train.epochs=1", "train.monitor_epochs=0", "probe.max_iter=20",
    "evaluation.eps=0.02,0.1", "evaluation.attacks=fgsm,pgd", "evaluation.images=32",
)  # fmt: skip


def intnacl(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `python -m intnacl` and capture its output."""
    command = [sys.executable, "-m", "intnacl", *map(str, arguments)]
    environment = os.environ | {"COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)


def exit_code(*arguments: object) -> int:
    """Run a command in this process until it exits."""
    with pytest.raises(SystemExit) as ended:
        app(list(map(str, arguments)))
    return int(ended.value.code or 0)


def assert_refused(arguments: list[str], message: str, folder: Path) -> None:
    """Check that the mistake is named, and that nothing is written to the working folder."""
    with contextlib.chdir(folder), pytest.raises(InputError, match=message):
        app(arguments)
    assert list(folder.iterdir()) == []
