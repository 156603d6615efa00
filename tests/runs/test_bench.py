"""The timing of steps, on a CPU with a small network."""

import json

import pytest
import torch

from intnacl.runs import bench
from mistakes import must_refuse

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"encoder.name": "small", "train.batch_size": 16}
    monkeypatch.setattr(bench, "ROWS", {name: row | small for name, row in bench.ROWS.items()})


@pytest.mark.parametrize("name", list(bench.ROWS))
def test_a_row_measures_the_step_and_its_views(name):
    row = bench.measure(name, CPU, steps=2)
    assert row["loss"] == name
    assert 0 < row["views_ms"] < row["ms"]
    assert row["ms"] == sorted(row["repeats_ms"])[1]
    assert row["epochs_100_min"] == pytest.approx(row["ms"] * 195 * 100 / 60_000)
    assert (row["way"], row["precision"], row["memory_gib"]) == ("eager", "fp32", None)


def test_rows_are_printed_and_written(tmp_path, capsys):
    bench.time_losses(CPU, 1, (), tmp_path / "new" / "bench.json")
    written = json.loads((tmp_path / "new" / "bench.json").read_text())
    assert [row["loss"] for row in written["rows"]] == list(bench.ROWS)
    assert f"torch {torch.__version__}" in written["hardware"]
    printed = capsys.readouterr()
    assert [name in printed.out for name in bench.ROWS] == [True] * 4
    assert [f"  {row['ms']:.2f} ms per step" in printed.err for row in written["rows"]] == [True] * 4


def test_rows_are_chosen_by_parts_of_their_names_and_kept_if_a_later_one_fails(tmp_path, monkeypatch, capsys):
    first, *_, last = bench.ROWS
    monkeypatch.setitem(bench.ROWS, last, {"encoder.name": "none such"})
    must_refuse(bench.time_losses, CPU, 1, ("JOINT", "intnacl"), tmp_path / "bench.json", "none such")
    assert [row["loss"] for row in json.loads((tmp_path / "bench.json").read_text())["rows"]] == [first]
    printed = capsys.readouterr().out
    assert [name in printed for name in (first, last)] == [True, False]


def test_an_out_that_cannot_be_written_is_named_before_any_timing(tmp_path):
    (tmp_path / "file").touch()
    must_refuse(bench.time_losses, CPU, 1, (), tmp_path / "file" / "bench.json", "could not be written")
