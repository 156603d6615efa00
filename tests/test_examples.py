"""The examples run as they stand, and do what they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, *arguments: str) -> str:
    """What an example prints; its warnings are errors, as everywhere."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("preset", ["simclr", "intnacl"])
def test_own_loop_learns_from_unlabelled_digits(preset):
    printed = re.findall(r"([\d.]+) %", run("own_loop.py", "--preset", preset, "--epochs", "2"))
    few_before, _, few_after, _ = map(float, printed)
    assert few_after > few_before + 5  # percentage points, with 100 labels
