"""Runs that differ in what is measured alone are trained once."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from grids import jobs

from intnacl.paper.attempts import attempt, run_folder
from intnacl.paper.plan import Job
from intnacl.paper.reuse import inherit
from intnacl.runs.folder import RunFolder
from intnacl.training.stop import Stop

TAKES = "takes the encoder of"


def _done(job: Job, results: Path) -> tuple[dict[str, Any], str]:
    """The result of a run that is done now, and what it printed."""
    assert attempt(job, results, device="cpu", stop=Stop(), session="one") == "finished"
    folder = run_folder(results, job.name)
    return json.loads(folder.result.read_text()), folder.output.read_text()


def _measured(results: Path, *jobs: Job) -> set[str]:
    return {path.name for job in jobs for path in run_folder(results, job.name).measurements.glob("*.json")}


def test_another_attack_is_measured_on_the_same_encoder(tmp_path: Path) -> None:
    (first,) = jobs()
    (second,) = jobs(**{"evaluation.attacks": ("fgsm", "pgd")})
    one, _ = _done(first, tmp_path)
    run_folder(tmp_path, first.name).mark_shared()
    two, said = _done(second, tmp_path)
    assert f"{TAKES} {first.name}" in said
    assert "epoch 1/1" not in said
    assert one["protocol"]["encoder_sha256"] == two["protocol"]["encoder_sha256"]
    assert two["protocol"]["hardware"]["shared"] is True  # while its encoder was trained
    assert one["time_s"]["probe digits"] == two["time_s"]["probe digits"]  # not done again
    assert one["accuracy"]["digits"]["pgd"] is None
    assert two["accuracy"]["digits"]["pgd"] is not None
    assert _done(second, tmp_path / "alone")[0]["accuracy"] == two["accuracy"]


def test_another_probe_is_trained_on_the_same_encoder(tmp_path: Path) -> None:
    (first,), (second,) = jobs(), jobs(**{"probe.max_iter": 5})
    _done(first, tmp_path)
    two, said = _done(second, tmp_path)
    assert TAKES in said
    assert [probe["probe"]["max_iter"] for probe in two["probes"]] == [5]
    assert _done(second, tmp_path / "alone")[0]["accuracy"] == two["accuracy"]


@pytest.mark.parametrize("change", [{"train.lr": 1e-2}, {"augment.strength": 0.1}])
def test_another_training_is_another_encoder(tmp_path: Path, change: dict[str, Any]) -> None:
    (first,), (second,) = jobs(), jobs(**change)
    assert first.name != second.name
    assert first.name.rpartition("-")[0] == second.name.rpartition("-")[0]
    _done(first, tmp_path)
    assert TAKES not in _done(second, tmp_path)[1]


@pytest.mark.parametrize("gone", ["config.json", "encoder.safetensors"])
def test_an_encoder_of_which_nothing_is_known_is_not_taken(tmp_path: Path, gone: str) -> None:
    (first,), (second,) = jobs(), jobs(**{"evaluation.eps": (0.02,)})
    _done(first, tmp_path)
    (run_folder(tmp_path, first.name) / gone).unlink()
    assert TAKES not in _done(second, tmp_path)[1]


def test_all_that_is_measured_is_taken_and_again_after_an_interruption(tmp_path: Path) -> None:
    """From every run of the same encoder, which comes last: without it, what was taken counts for nothing."""
    first, second, third = (
        jobs(**{"evaluation.attacks": attacks})[0] for attacks in (("fgsm",), ("pgd",), ("fgsm", "pgd"))
    )
    for job in (first, second):
        _done(job, tmp_path)
    known = _measured(tmp_path, first, second)
    folder = run_folder(tmp_path, third.name)
    for times in (1, 2):
        assert _done(third, tmp_path)[1].count(TAKES) == times
        assert known <= _measured(tmp_path, third)
        for path in (folder.result, folder.encoder):
            path.unlink()
        shutil.rmtree(folder.measurements)


def test_a_stopped_training_is_gone_on_with(tmp_path: Path) -> None:
    (first,), (second,) = jobs(epochs=(3,)), jobs(epochs=(3,), **{"evaluation.eps": (0.02,)})
    assert attempt(first, tmp_path, device="cpu", stop=Stop(max_minutes=0), session="one") == "stopped"
    two, said = _done(second, tmp_path)
    assert "going on from step" in said
    alone, _ = _done(second, tmp_path / "alone")
    assert alone["protocol"]["encoder_sha256"] == two["protocol"]["encoder_sha256"]


def test_a_longer_run_goes_on_from_any_shorter_one_that_kept_its_state(tmp_path: Path) -> None:
    one, *_ = jobs(epochs=(1, 2))
    _done(one, tmp_path)  # which keeps its state for the second, that nobody does
    *_, three = jobs(epochs=(1, 2, 3))
    assert "going on from step 2 of 6" in _done(replace(three, parent=None), tmp_path)[1]


def test_a_state_is_not_taken_from_a_run_in_training(tmp_path: Path) -> None:
    """It may remove that state meanwhile."""
    other, folder = RunFolder(tmp_path / "other"), RunFolder(tmp_path / "folder")
    state = other.checkpoints / "step-000000002"
    state.mkdir(parents=True)
    (state / "state.json").write_text("{}")
    with RunFolder(other.path).hold():
        inherit(other, folder)
        assert not folder.path.exists()
        other.result.touch()  # its worker is about to let go of it
        inherit(other, folder)
    assert (folder.checkpoints / state.name / "state.json").exists()
