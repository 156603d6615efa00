"""The examples run as they stand, and do what they say."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_run import measured

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


def test_the_entry_for_robustbench_has_the_keys_of_its_leaderboard(tmp_path):
    """Those of its files in model_info; its own `benchmark` is run by hand, as docs/robustness.md tells."""
    entry = runpy.run_path(str(EXAMPLES / "robustbench_entry.py"))["entry"]
    run = measured(tmp_path)
    rows = run.result["attacks"]
    attack = rows[0] | {"name": "autoattack", "eps": 8 / 255, "accuracy": 12.345}
    run.folder.result.write_text(json.dumps({**run.result, "attacks": [*rows, attack]}))
    found = entry(run, "digits", 0.5, 0.125)
    assert {key: found[key] for key in ("dataset", "eps", "clean_acc", "autoattack_acc", "reported")} == {
        "dataset": "digits",
        "eps": "8/255",
        "clean_acc": "50.00",
        "autoattack_acc": "12.50",
        "reported": "12.35",
    }
    assert set(found) == {
        *("link", "name", "authors", "additional_data", "number_forward_passes", "dataset", "venue"),
        *("architecture", "eps", "clean_acc", "reported", "autoattack_acc", "unreliable"),
    }
