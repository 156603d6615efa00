"""The timing of steps, on a CPU and a small net."""

import json

import pytest
import torch

from intnacl.cli.commands import bench_command
from intnacl.errors import InputError
from intnacl.runs import bench


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"encoder.name": "small", "train.batch_size": 16}
    monkeypatch.setattr(bench, "ROWS", {name: row | small for name, row in bench.ROWS.items()})


@pytest.mark.parametrize("name", list(bench.ROWS))
def test_a_row_measures_the_step_and_its_views(name: str) -> None:
    row = bench.measure(name, torch.device("cpu"), steps=2)
    assert row["loss"] == name
    assert 0 < row["views_ms"] < row["ms"]
    assert row["ms"] == sorted(row["repeats_ms"])[1]
    assert row["epochs_100_min"] == pytest.approx(row["ms"] * 195 * 100 / 60_000)
    assert (row["way"], row["precision"], row["memory_gib"]) == ("eager", "fp32", None)


def test_the_command_prints_a_table_and_writes_the_figures(
    tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench_command("cpu", 1, (), tmp_path / "new" / "bench.json")
    written = json.loads((tmp_path / "new" / "bench.json").read_text())
    assert [row["loss"] for row in written["rows"]] == list(bench.ROWS)
    assert f"torch {torch.__version__}" in written["hardware"]
    told = capsys.readouterr()
    assert "IntNaCl" in told.out
    assert [f"  {row['ms']:.2f} ms a step" in told.err for row in written["rows"]] == [True] * 4


def test_rows_are_chosen_by_a_part_of_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    bench_command("cpu", 1, ("JOINT", "intnacl"), None)
    table = capsys.readouterr().out
    assert [name in table for name in bench.ROWS] == [True, False, False, True]
    with pytest.raises(InputError, match="--only 'moco' is in no row's name; there are 'SimCLR, joint BN'"):
        bench_command("cpu", 1, ("simclr", "moco"), None)


def test_a_row_that_fails_loses_none_before_it(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, *_ = bench.ROWS
    monkeypatch.setitem(bench.ROWS, second, {"encoder.name": "none such"})
    with pytest.raises(InputError, match="none such"):
        bench_command("cpu", 1, (), tmp_path / "bench.json")
    assert [row["loss"] for row in json.loads((tmp_path / "bench.json").read_text())["rows"]] == [first]
    assert first in capsys.readouterr().out


def test_what_cannot_be_timed_or_written_is_named_at_once(tmp_path) -> None:
    with pytest.raises(InputError, match="steps=0 times nothing"):
        bench_command("cpu", 0, (), None)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="could not be written"):
        bench_command("cpu", 1, (), tmp_path / "file" / "bench.json")
    with pytest.raises(InputError, match="is a folder"):
        bench_command("cpu", 1, (), tmp_path)
