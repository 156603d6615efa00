"""Runs that share a device are known as such, whoever began first; those that do not are left alone."""

import json
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from grids import jobs

from intnacl.paper.attempts import attempt, run_folder
from intnacl.paper.cells import figure
from intnacl.paper.reuse import inherit
from intnacl.paper.sharing import device_name, mark_shared
from intnacl.runs.folder import RunFolder
from intnacl.training.stop import Stop


def _marked(results: Path) -> list[str]:
    return sorted(path.parent.name for path in results.glob("runs/*/shared"))


def test_a_run_beside_another_marks_both(tmp_path: Path) -> None:
    done, other, elsewhere = (run_folder(tmp_path, name) for name in ("done", "other", "elsewhere"))
    done.path.mkdir(parents=True)
    with elsewhere.hold(device="cuda:1"), other.hold(device="cpu"):
        mark_shared(tmp_path, other)
        assert _marked(tmp_path) == []
        (job,) = jobs()
        assert attempt(job, tmp_path, device="cpu", stop=Stop(), session="one") == "finished"
    assert _marked(tmp_path) == sorted([job.name, "other"])
    result = json.loads(run_folder(tmp_path, job.name).result.read_text())
    assert result["protocol"]["hardware"]["shared"] is True
    assert figure(result, "digits", "minutes").value is None


def test_a_run_that_is_only_measured_keeps_its_minutes(tmp_path: Path) -> None:
    """Its own and, where it is the other one, that one's."""
    (job,) = jobs()
    folder, other = run_folder(tmp_path, job.name), run_folder(tmp_path, "other")
    assert attempt(job, tmp_path, device="cpu", stop=Stop(), session="one") == "finished"
    (folder / "result.json").unlink()
    with other.hold(device="cpu"):
        other.encoder.touch()
        assert attempt(job, tmp_path, device="cpu", stop=Stop(), session="one") == "finished"
        assert _marked(tmp_path) == []
        with run_folder(tmp_path, "third").hold(device="cpu"):
            mark_shared(tmp_path, run_folder(tmp_path, "third"))
    assert _marked(tmp_path) == ["third"]


def test_a_run_alone_is_not_marked(tmp_path: Path) -> None:
    (job,) = jobs()
    assert attempt(job, tmp_path, device="cpu", stop=Stop(), session="one") == "finished"
    result = json.loads(run_folder(tmp_path, job.name).result.read_text())
    assert "shared" not in result["protocol"]["hardware"]
    assert figure(result, "digits", "minutes").value == pytest.approx(result["time_s"]["pretrain"] / 60)
    assert _marked(tmp_path) == []


def test_the_same_device_of_another_host_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = socket.gethostname()
    monkeypatch.setattr("socket.gethostname", lambda: f"not {host}")
    with run_folder(tmp_path, "there").hold(device="cpu"):
        monkeypatch.undo()
        with run_folder(tmp_path, "here").hold(device="cpu"):
            mark_shared(tmp_path, run_folder(tmp_path, "here"))
    assert _marked(tmp_path) == []


def test_the_lock_of_an_earlier_version_is_no_neighbour(tmp_path: Path) -> None:
    with run_folder(tmp_path, "old").hold(device="cpu"), run_folder(tmp_path, "new").hold(device="cpu"):
        run_folder(tmp_path, "old").lock.write_text('{"host": "some", "pid": 1, "since": 0}')
        mark_shared(tmp_path, run_folder(tmp_path, "new"))
    assert _marked(tmp_path) == []


def test_a_run_that_goes_on_from_a_shared_one_is_shared(tmp_path: Path) -> None:
    """Its time has the other's in it."""
    for name, shared in (("a", True), ("b", False)):
        short, longer = RunFolder(tmp_path / name), RunFolder(tmp_path / f"{name}-longer")
        (short.checkpoints / "step-000000002").mkdir(parents=True)
        (short.checkpoints / "step-000000002" / "state.json").write_text("{}")
        if shared:
            short.shared.touch()
        inherit(short, longer)
        assert longer.shared.exists() == shared


def test_a_gpu_has_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """`cuda` and `cuda:0` are the same, and one that another process calls `cuda:1`."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=f"GPU-{device.index or 0}")
    )
    assert [device_name(d) for d in ("cuda", "cuda:0", "cuda:1")] == ["GPU-0", "GPU-0", "GPU-1"]
    assert [device_name(d) for d in ("cpu", "cuda:2")] == ["cpu", "cuda:2"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_real_gpu_has_a_number_of_its_own() -> None:
    assert device_name("cuda") == device_name("cuda:0") != "cuda:0"
