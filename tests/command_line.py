"""The command line as a user meets it."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from intnacl.cli import app
from intnacl.errors import InputError


def intnacl(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `python -m intnacl` and keep what it prints."""
    command = [sys.executable, "-m", "intnacl", *map(str, arguments)]
    environment = os.environ | {"COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)


def assert_refused(arguments: list[str], message: str, folder: Path) -> None:
    """The mistake is told, and nothing has been written to the working folder."""
    with contextlib.chdir(folder), pytest.raises(InputError, match=message):
        app(arguments)
    assert list(folder.iterdir()) == []
