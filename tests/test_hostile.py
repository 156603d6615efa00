"""Malformed inputs end in success or in clear words; a run that is killed ends in the same bytes.

The sample is fast; `make campaign` makes the whole campaigns. `-s` prints how many inputs ended how.
"""

import multiprocessing
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from hostile import Campaign, train
from hostile_data import data_sets
from hostile_inputs import (
    command_line,
    late_settings,
    python_arguments,
    results_folders,
    run_folders,
    settings_files,
)

CAMPAIGNS = {
    command_line: (60, 800),
    settings_files: (60, 600),
    run_folders: (30, 500),
    results_folders: (20, 300),
    late_settings: (20, 200),
    data_sets: (100, 1000),
    python_arguments: (60, 400),
}
"""Generator -> inputs of the sample and of the whole campaign."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.campaign)], ids=["sample", "whole"])
@pytest.mark.parametrize("kind", CAMPAIGNS, ids=lambda kind: kind.__name__)
def test_malformed_input_is_refused_in_clear_words_or_does_no_harm(kind, seed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INTNACL_DATA", str(tmp_path / "root"))
    campaign = Campaign(seed, tmp_path)
    kind(campaign, int(os.environ.get("HOSTILE_COUNT", CAMPAIGNS[kind][seed])))
    campaign.end(kind.__name__)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [2, pytest.param(100, marks=pytest.mark.campaign)])
def test_a_run_that_is_killed_at_any_moment_ends_in_the_same_bytes(kills, tmp_path):
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["hostile", "sklearn.datasets", "matplotlib.backends.backend_agg"])
    draw = random.Random(kills)

    def begin(out: Path) -> Any:
        out.parent.mkdir(exist_ok=True)
        process = processes.Process(target=train, args=(out,))
        process.start()
        return process

    def end(process: Any, out: Path) -> bytes:
        process.join(200)
        text = (out.parent / "output.txt").read_text()
        assert process.exitcode == 0, text
        assert "damaged" not in text
        return (out / "encoder.safetensors").read_bytes()

    first = tmp_path / "first" / "run"
    end(begin(first), first)
    whole = tmp_path / "whole" / "run"
    begun = time.monotonic()
    undisturbed = end(begin(whole), whole)
    seconds, left, runs = time.monotonic() - begun, kills, 0
    while left:
        out, runs = tmp_path / str(runs) / "run", runs + 1
        while left:
            process = begin(out)
            process.join(draw.uniform(0, 0.8 * seconds))
            if process.exitcode is not None:
                break
            process.kill()
            process.join()
            left -= 1
        assert end(begin(out), out) == undisturbed
        assert not list((out / "checkpoints").glob(".*"))
    print(f"\n{kills} kills of {runs} runs of {seconds:.1f} s")
