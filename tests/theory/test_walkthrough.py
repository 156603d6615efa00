"""docs/theory.md, step by step: the quoted code is in the linked files, and the quoted numbers hold."""

import re
from pathlib import Path

import pytest
import torch

from intnacl import IntNaClLoss
from intnacl.theory.sweep import SweepConfig, sweep

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "theory.md").read_text()
STEPS = re.findall(r"^## (\d\. .+?\n)(.*?)(?=^## )", TEXT, re.MULTILINE | re.DOTALL)


def stripped(code: str) -> str:
    return "\n".join(line.strip() for line in code.strip().splitlines())


@pytest.mark.parametrize("number", range(9))
def test_a_step_has_its_lines_of_code_and_its_figure(number):
    title, text = STEPS[number]
    assert (title[0], len(STEPS)) == (str(number), 9)
    linked = {DOCS / target for target in re.findall(r"\((\.\./src/[\w/]+\.py)\)", text)}
    sources = [stripped(path.read_text()) for path in linked]
    quoted = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert quoted
    for code in quoted:
        assert any(stripped(code) in source for source in sources), f"no linked file holds\n{code}"
    assert text.count(f"(images/theory-{number}-") == 1


def test_both_denominators_of_step_3():
    """64 images in 16 dimensions, noise 0.7 per view: the loss and the norm of its gradient over M."""
    torch.manual_seed(0)
    centres = torch.randn(64, 16)
    views = [centres + 0.7 * torch.randn(64, 16) for _ in range(17)]
    rows = re.findall(r"^\| (\d+) \|(.*)\|$", STEPS[3][1], re.MULTILINE)
    assert [int(M) for M, _ in rows] == [1, 2, 5, 16]
    for M, cells in rows:
        quoted = [float(cell) for cell in cells.split("|")]
        for column, denominator in enumerate(("N", "MN")):
            z0 = views[0].clone().requires_grad_()
            criterion = IntNaClLoss(num_positives=int(M), denominator=denominator)
            loss = criterion(z0, views[1], extra=views[2 : int(M) + 1])
            (gradient,) = torch.autograd.grad(loss, z0)
            assert quoted[column] == pytest.approx(loss.item(), abs=6e-4)
            assert quoted[2 + column] == pytest.approx(gradient.norm().item(), abs=6e-5)


def quoted_row(start: str) -> list[float]:
    """The numbers of the table row that begins with `start`."""
    (row,) = [line for line in TEXT.splitlines() if line.startswith(f"| {start}")]
    return [float(cell) for cell in re.findall(r"[\d.]+", row.removeprefix(f"| {start}"))]


def test_quoted_measurements_hold():
    measured = sweep(SweepConfig(draws=4000))
    for row, key in (("M·N·G |", "MN"), ("N·G |", "N")):
        assert quoted_row(row) == pytest.approx([r[key] for r in measured["complexity"]], abs=0.051)
    for row, name in (
        ("features at ±1.3 rad, and at π |", "two classes"),
        ("exclusive or: at 0 and π, and at ±π/2 |", "exclusive or"),
    ):
        losses = measured["lemma"][name]
        expected = [losses[0]["sup"], losses[0]["sup_mean"], *(r["unbiased"] for r in losses[:4])]
        assert quoted_row(row) == pytest.approx(expected, abs=5e-4)
    last = measured["n"][-1]
    assert last["plain_gap"] == pytest.approx(0.158, abs=5e-4)
    assert last["gap"] < 0.001
    assert 0.08 < measured["n"][3]["spread"] / measured["n"][3]["proved"] < 0.12
