"""Run folders of an earlier version can be opened, shown and resumed, and keep their measurements."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from intnacl.evaluation import robustness
from intnacl.paper.cells import read_cells
from intnacl.runs.folder import RunFolder
from intnacl.runs.opened import open_run
from intnacl.runs.overview import Overview
from intnacl.runs.stages import train_and_measure
from intnacl.training.stop import Stop
from mistakes import must_refuse
from tiny_run import CPU, HERE, forbid_evaluation

OLD = Path(__file__).with_name("old_runs")
MEASURED = ["finished", "several_attacks", "reproduced"]


def copy(name: str, folder: Path) -> RunFolder:
    shutil.copytree(OLD / name, folder)
    if name in (*MEASURED, "half_attacked"):
        shutil.copy(OLD / "encoder.safetensors", folder)
    return RunFolder(folder)


def resume(folder: RunFolder) -> dict[str, Any]:
    """Repeat the command that started the run, and return its result."""
    assert train_and_measure(folder.read_config(), folder, HERE, Stop()) is None
    return json.loads(folder.result.read_text())


def assert_holds(found: Any, stored: Any) -> None:
    """Check that all stored values are found; newer settings and keys are allowed in addition."""
    if isinstance(stored, dict):
        for key, value in stored.items():
            assert_holds(found[key], value)
    elif isinstance(stored, list):
        for one, other in zip(found, stored, strict=True):
            assert_holds(one, other)
    else:
        assert found == stored


@pytest.mark.parametrize("name", MEASURED)
def test_a_finished_run_opens_and_is_not_measured_again(tmp_path, monkeypatch, name):
    folder = copy(name, tmp_path / "run")
    before = {path: path.read_bytes() for path in folder.measured_files()}
    stored = json.loads(folder.result.read_text())
    forbid_evaluation(monkeypatch)
    run = open_run(folder, device=CPU)
    assert run.result == stored
    assert not run.classifier().training
    for row in stored["probes"]:  # the present names of protocols
        row["protocol"] = {"probe": "slf", "hcl_probe": "hcl"}[row["protocol"]]
    assert not stored["config"]["train"].pop("tensorboard")  # now one of `train.trackers`
    assert_holds(Overview(run).result(), stored)  # to the last digit, and in the same order
    assert_holds(resume(folder), stored)
    assert {path: path.read_bytes() for path in folder.measured_files()} == before
    text = folder.page.read_text()
    assert "Under attack: digits" in text
    assert "Classes: digits" not in text  # no confusion was stored, and no probe is fitted again for it
    assert "before and after the attack" not in text  # no images were stored


@pytest.fixture
def attacked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """The attacks that are executed; all other evaluators fail."""
    attacked: list[tuple[str, float]] = []
    real = robustness.verdicts

    def _noted(*arguments: Any, **options: Any) -> Iterator[robustness.Verdicts]:
        attacked.extend((attack.name, attack.eps) for attack in arguments[3])
        return real(*arguments, **options)

    forbid_evaluation(monkeypatch)
    monkeypatch.setattr(robustness, "verdicts", _noted)
    return attacked


def test_more_can_be_measured_on_an_old_run(tmp_path, attacked):
    folder = copy("finished", tmp_path / "run")
    before, wanted = json.loads(folder.result.read_text()), folder.read_config()
    more = replace(wanted, evaluation=replace(wanted.evaluation, eps=(0.02, 0.1, 0.2)))
    run = replace(open_run(folder, device=CPU), config=more)
    run.measure()
    assert attacked == [("fgsm", 0.2), ("pgd", 0.2), ("pgd_tuned", 0.2)]
    assert_holds([row for row in run.result["attacks"] if row["eps"] != 0.2], before["attacks"])


def test_a_half_attacked_run_resumes_with_the_remaining_attacks(tmp_path, attacked):
    folder = copy("half_attacked", tmp_path / "run")
    result = resume(folder)
    assert attacked == [("fgsm", 0.1), ("pgd", 0.1), ("pgd_tuned", 0.1)]
    assert not list(folder.measurements.glob("*.begun"))
    # Another run on the same encoder asked for the same, and for more.
    other = json.loads((OLD / "several_attacks" / "result.json").read_text())["attacks"]
    assert_holds([row for row in result["attacks"] if row["eps"] == 0.02], other[:4])
    wanted = [row for row in other if row["eps"] == 0.1]
    found = [row for row in result["attacks"] if row["eps"] == 0.1]
    for row, old in zip(found, wanted, strict=True):
        assert row["accuracy"] == pytest.approx(old["accuracy"], abs=0.6)  # two images, on another machine
        assert_holds(row, old | {"accuracy": row["accuracy"]})


def test_a_half_trained_run_resumes_from_its_checkpoint(tmp_path, capsys):
    folder = copy("half_trained", tmp_path / "run")
    must_refuse(open_run, folder, "is not fully trained yet")
    result = resume(folder)
    assert "going on from step 12 of 33" in capsys.readouterr().out
    assert result["accuracy"]["digits"]["clean"] > 50


def test_a_record_is_shown_and_never_overwritten(tmp_path):
    folder = copy("record", tmp_path / "run")
    assert folder.state() == "record"
    result = folder.read_result()
    assert result["accuracy"]["digits"]["clean"] > 50
    must_refuse(open_run, folder, "is a record without weights")
    must_refuse(resume, folder, "is the record of a finished run without its weights")


def test_a_results_folder_is_reported(tmp_path):
    plan = json.loads((OLD / "reproduced-plan.json").read_text())
    (name,) = [name for name in plan["jobs"] if name.startswith("digits-nca-g2-M1-alpha1-1epochs-seed0")]
    copy("reproduced", tmp_path / "runs" / name)
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    tables, runs = read_cells(tmp_path)
    assert [run.name for run in runs.values() if run.status == "finished"] == [name]
    values = [cell.values for table in tables for row in table.cells for cell in row if cell.values]
    assert values
