"""The timing of steps, on a CPU and a small net."""

import json

import pytest
import torch

from intnacl import bench
from intnacl.commands import bench_command


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"encoder.name": "small", "train.batch_size": 16}
    monkeypatch.setattr(bench, "ROWS", {name: row | small for name, row in bench.ROWS.items()})


@pytest.mark.parametrize("name", list(bench.ROWS))
def test_a_row_measures_the_step_and_its_views(name: str) -> None:
    row = bench.measure(name, torch.device("cpu"), steps=2)
    assert row["loss"] == name
    assert 0 < row["views_ms"] < row["ms"]
    assert row["epochs_100_min"] == pytest.approx(row["ms"] * 195 * 100 / 60_000)
    assert (row["way"], row["precision"], row["memory_gib"]) == ("eager", "fp32", None)


def test_the_command_prints_a_table_and_writes_the_figures(
    tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench_command("cpu", 1, tmp_path / "bench.json")
    written = json.loads((tmp_path / "bench.json").read_text())
    assert [row["loss"] for row in written["rows"]] == list(bench.ROWS)
    assert f"torch {torch.__version__}" in written["hardware"]
    assert "IntNaCl" in capsys.readouterr().out
