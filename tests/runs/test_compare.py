"""Losses side by side: the figures of the runs, with their means, standard deviations and differences."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from intnacl.runs.compare import accuracy_panels, compare, run_folder, summarize, write_comparison
from intnacl.training.ranks import Ranks
from intnacl.training.stop import Stop
from tiny_run import HERE, config, measured_original


def write_results(
    folder: Path,
    accuracies: dict[str, list[float]],
    change: Callable[[dict[str, Any], int], None] | None = None,
) -> None:
    """Write results of made-up runs: clean accuracy, and FGSM and PGD at 0.02 and 0.1 as fractions of it.

    `change` alters a result, given its seed.
    """
    original = (measured_original() / "result.json").read_text()
    for label, values in accuracies.items():
        for seed, clean in enumerate(values):
            result: dict[str, Any] = json.loads(original)
            result["accuracy"]["digits"]["clean"] = clean
            for row in result["attacks"]:
                row["accuracy"] = clean * (1 - 5 * row["eps"])
            if change:
                change(result, seed)
            run = run_folder(folder, label, seed)
            run.path.mkdir(parents=True)
            run.result.write_text(json.dumps(result))


def test_means_deviations_and_paired_differences(tmp_path):
    write_results(tmp_path, {"a": [80.0, 84.0, 82.0], "b": [90.0, 91.0, 95.0]})
    summary = summarize(tmp_path, ["a", "b"], [0, 1, 2])
    pgd = summary["losses"]["b"]["pgd 0.1"]
    values = np.array([90.0, 91.0, 95.0]) * 0.5
    assert pgd["mean"] == pytest.approx(values.mean())
    assert pgd["sd"] == pytest.approx(values.std(ddof=1))
    difference = summary["difference"]["clean"]
    assert difference["values"] == [10.0, 7.0, 13.0]
    assert (difference["mean"], difference["sd"]) == (10.0, pytest.approx(3.0))
    assert list(summary["losses"]["a"]) == [
        "clean", "fgsm 0.02", "fgsm 0.1", "pgd 0.02", "pgd 0.1", "worst_case 0.02", "worst_case 0.1",
    ]  # fmt: skip
    assert summary["protocol"]["probe"]["epochs"] == 20
    assert "seed" not in summary["protocol"]


@pytest.mark.parametrize("rank", [0, 1])
def test_several_ranks_train_all_runs_before_the_main_rank_measures(tmp_path, monkeypatch, rank):
    done: list[str] = []
    for name in ("pretrain", "train_and_measure"):
        monkeypatch.setattr(
            f"intnacl.runs.compare.{name}",
            lambda _, folder, *more, name=name: done.append(f"{name} {folder.path.name}"),
        )
    here = Ranks(rank, 2, torch.device("cpu"))
    assert compare({"a": config(), "b": config()}, [0, 1], tmp_path, here, Stop(), print) is None
    runs = ["a-seed0", "b-seed0", "a-seed1", "b-seed1"]
    assert done == [f"pretrain {name}" for name in runs] + [
        f"train_and_measure {name}" for name in runs if rank == 0
    ]


def test_table_and_files(tmp_path, capsys):
    write_results(tmp_path, {"a": [80.0, 84.0], "b": [90.0, 92.0]})
    write_comparison(tmp_path, ["a", "b"], [0, 1])
    text = capsys.readouterr().out
    lines = [line.split() for line in text.splitlines()]
    assert ["clean", "82.0", "±", "2.8", "91.0", "±", "1.4", "+9.0", "±", "1.4"] in lines
    assert ["PGD,", "eps", "0.1", "41.0", "±", "1.4", "45.5", "±", "0.7", "+4.5", "±", "0.7"] in lines
    assert f"{tmp_path}/{{a,b}}-seed{{0,1}}/report.html" in text
    summary = summarize(tmp_path, ["a", "b"], [0, 1])
    assert json.loads((tmp_path / "comparison.json").read_text()) == summary
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_radii_are_sorted_and_whole_grey_levels_are_written_as_fractions(tmp_path, capsys):
    def change(result: dict[str, Any], seed: int) -> None:
        result["config"]["evaluation"]["eps"] = [0.1, 8 / 255]
        for one in (*result["attacks"], *result["protocol"]["attacks"]):
            one["eps"] = {0.02: 8 / 255}.get(one["eps"], one["eps"])
        result["attacks"].reverse()

    write_results(tmp_path, {"a": [80.0]}, change)
    write_comparison(tmp_path, ["a"], [0])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines if "FGSM" in line] == ["FGSM, eps 8/255", "FGSM, eps 0.1"]
    summary = summarize(tmp_path, ["a"], [0])
    assert [point[0] for point in accuracy_panels(summary)["FGSM"]["a"]] == [0.0, 8 / 255, 0.1]


def test_one_seed_shows_no_deviation_and_without_attacks_clean_accuracies_are_drawn(tmp_path, capsys):
    def change(result: dict[str, Any], seed: int) -> None:
        result["config"]["evaluation"]["attacks"] = result["attacks"] = []

    write_results(tmp_path, {"a": [80.0], "b": [78.5]}, change)
    write_comparison(tmp_path, ["a", "b"], [0])
    text = capsys.readouterr().out
    assert "±" not in text
    assert ["clean", "80.0", "78.5", "-1.5"] in [line.split() for line in text.splitlines()]
    assert f"{tmp_path}/{{a,b}}-seed0/report.html" in text
    panels = accuracy_panels(summarize(tmp_path, ["a", "b"], [0]))
    assert panels == {"none": {"a": [(0.0, 80.0, 0.0)], "b": [(0.0, 78.5, 0.0)]}}


def test_exactly_the_configured_accuracies_are_compared(tmp_path):
    """A curve begins at the clean accuracy of the attacked images."""

    def change(result: dict[str, Any], seed: int) -> None:
        result["config"]["evaluation"]["fgsm_eps"] = [0.05]
        clean = (70.0, 72.0)[seed]  # of the 64 of 355 that were attacked
        result["attacks"] = [row | {"clean": clean} for row in result["attacks"]]
        row = next(row for row in result["attacks"] if row["name"] == "fgsm" and row["eps"] == 0.02)
        few = row | {"images": 8, "accuracy": 1.0}  # an attack by hand on fewer images
        result["attacks"] += [row | {"eps": 0.05, "accuracy": 60.0}, row | {"eps": 0.03}, few]

    write_results(tmp_path, {"a": [80.0, 84.0]}, change)
    summary = summarize(tmp_path, ["a"], [0, 1])
    found = {name: figure["mean"] for name, figure in summary["losses"]["a"].items()}
    assert (found["clean"], found["fgsm 0.02"], found["fgsm 0.05"]) == (82.0, pytest.approx(82.0 * 0.9), 60.0)
    assert "fgsm 0.03" not in found
    for curves in accuracy_panels(summary).values():
        assert curves["a"][0] == (0.0, 71.0, pytest.approx(2**0.5))


def test_each_run_has_its_own_folder_and_a_stop_is_passed_on(tmp_path):
    tiny = {"train.epochs": 1, "evaluation.eps": (0.02,), "evaluation.images": 16}
    said: list[str] = []
    configs = {"simclr": config(**tiny)}
    assert compare(configs, [3], tmp_path, HERE, Stop(), said.append) is None
    assert said[0] == "simclr, seed 3"
    stored = json.loads(run_folder(tmp_path, "simclr", 3).config.read_text())
    assert stored["seed"] == 3
    assert compare(configs, [3, 4], tmp_path, HERE, Stop(max_minutes=0), said.append) == "time"
    assert not run_folder(tmp_path, "simclr", 4).result.exists()
