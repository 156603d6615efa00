"""The page's table is the record's, and its example gives the classifier that was measured."""

import json
import re
from pathlib import Path

import pytest
import torch

from intnacl.attacks.named import ATTACK_NAMES
from tiny_run import measured

ROOT = Path(__file__).parents[1]
RECORD = json.loads((ROOT / "results" / "digits" / "comparison.json").read_text())


def row(key: str) -> str:
    attack, _, eps = key.partition(" ")
    name = f"{ATTACK_NAMES[attack]}, eps {eps}" if eps else key
    simclr, intnacl = (RECORD["losses"][loss][key] for loss in ("simclr", "intnacl"))
    cells = [f"{cell['mean']:.1f} ± {cell['sd']:.1f}" for cell in (simclr, intnacl)]
    difference = RECORD["difference"][key]
    return f"| {name} | {' | '.join(cells)} | {difference['mean']:+.1f} ± {difference['sd']:.1f} |"


def test_every_row_is_the_records_and_none_is_missing():
    text = (ROOT / "docs" / "digits.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and "±" in line]
    assert rows == [row(key) for key in RECORD["losses"]["simclr"]]
    assert len(RECORD["seeds"]) == 5


def test_its_example_gives_the_measured_classifier(tmp_path):
    folder = measured(tmp_path).folder
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "digits.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(code.replace('"RUN"', repr(str(folder))), names)
    with torch.no_grad():
        right = names["classifier"](names["pixels"]).argmax(dim=1) == names["labels"]
    result = json.loads((folder / "result.json").read_text())
    assert 100 * right.float().mean().item() == pytest.approx(result["accuracy"]["digits"]["clean"])
