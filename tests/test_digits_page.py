"""The tables of digits are the records', and the page's example gives the classifier that was measured."""

import json
import re
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import torch

from intnacl.attacks.named import ATTACK_NAMES
from tiny_run import measured

ROOT = Path(__file__).parents[1]


def row(record: dict[str, Any], key: str) -> str:
    attack, _, eps = key.partition(" ")
    name = f"{ATTACK_NAMES[attack]}, eps {eps}" if eps else key
    cells = [f"{found[key]['mean']:.1f} ± {found[key]['sd']:.1f}" for found in record["losses"].values()]
    difference = record["difference"][key]
    return f"| {name} | {' | '.join(cells)} | {difference['mean']:+.1f} ± {difference['sd']:.1f} |"


@pytest.mark.parametrize(
    ("page", "name", "labels"),
    [("digits", "comparison", ["simclr", "intnacl"]), ("robust", "robust", ["teacher", "student"])],
)
def test_every_row_is_the_records_and_none_is_missing(page, name, labels):
    record = json.loads((ROOT / "results" / "digits" / f"{name}.json").read_text())
    text = (ROOT / "docs" / f"{page}.md").read_text()
    rows = [
        line for line in text.splitlines() if line.startswith("| ") and line.count("±") == len(labels) + 1
    ]
    cells = len(labels) + 2
    rows = [line for line in text.splitlines() if "±" in line and line.count("|") == cells + 1]
    assert list(record["losses"]) == labels
    assert rows == [row(record, key) for key in record["losses"][labels[0]]]
    assert len(record["seeds"]) == 5


def test_the_table_of_clusters_is_the_record():
    record = json.loads((ROOT / "results" / "digits" / "robust-clusters.json").read_text())
    text = (ROOT / "docs" / "robust.md").read_text()
    for label, figures in record["encoders"].items():
        cells = [f"{fmean(values):.1f} ± {stdev(values):.1f}" for values in figures.values()]
        seeds = ", ".join(f"{value:.1f}" for value in figures["pgd_tuned 0.1"])
        assert f"| {label} | {' | '.join(cells)} | {seeds} |" in text


def test_each_student_withstands_tuned_pgd_better_than_its_teacher():
    record = json.loads((ROOT / "results" / "digits" / "robust.json").read_text())
    for key, spread in record["difference"].items():
        assert not key.startswith("pgd_tuned") or min(spread["values"]) > 0, key


def test_the_example_of_the_page_gives_the_measured_classifier(tmp_path):
    folder = measured(tmp_path).folder
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "digits.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(code.replace('"RUN"', repr(str(folder))), names)
    with torch.no_grad():
        right = names["classifier"](names["pixels"]).argmax(dim=1) == names["labels"]
    result = json.loads((folder / "result.json").read_text())
    assert 100 * right.float().mean().item() == pytest.approx(result["accuracy"]["digits"]["clean"])
