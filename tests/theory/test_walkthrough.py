"""docs/theory.md, step by step: the code it quotes stands in the files it links to, its numbers hold."""

import re
from pathlib import Path

import pytest
import torch

from intnacl import IntNaClLoss

DOCS = Path(__file__).parents[2] / "docs"
STEPS = re.findall(
    r"^## (\d\. .+?\n)(.*?)(?=^## )", (DOCS / "theory.md").read_text(), re.MULTILINE | re.DOTALL
)


def stripped(code: str) -> str:
    return "\n".join(line.strip() for line in code.strip().splitlines())


def test_there_are_nine_steps() -> None:
    assert [title[0] for title, _ in STEPS] == list("012345678")


@pytest.mark.parametrize(("title", "text"), STEPS, ids=[title.strip() for title, _ in STEPS])
def test_a_step_has_its_lines_of_code_and_its_figure(title: str, text: str) -> None:
    linked = {DOCS / target for target in re.findall(r"\((\.\./src/[\w/]+\.py)\)", text)}
    sources = [stripped(path.read_text()) for path in linked]
    quoted = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert quoted
    for code in quoted:
        assert any(stripped(code) in source for source in sources), f"no linked file holds\n{code}"
    assert text.count(f"(images/theory-{title[0]}-") == 1


def test_both_denominators_of_step_3() -> None:
    """64 images in 16 dimensions, noise 0.7 a view: loss and the norm of its gradient over M."""
    torch.manual_seed(0)
    centres = torch.randn(64, 16)
    views = [centres + 0.7 * torch.randn(64, 16) for _ in range(17)]
    rows = re.findall(r"^\| (\d+) \|(.*)\|$", STEPS[3][1], re.MULTILINE)
    assert [int(M) for M, _ in rows] == [1, 2, 5, 16]
    for M, cells in rows:
        losses, pulls = zip(
            *(loss_and_pull(views, int(M), denominator) for denominator in ("N", "MN")), strict=True
        )
        quoted = [float(cell) for cell in cells.split("|")]
        assert quoted[:2] == pytest.approx(losses, abs=6e-4)
        assert quoted[2:] == pytest.approx(pulls, abs=6e-5)


def loss_and_pull(views: list[torch.Tensor], M: int, denominator: str) -> tuple[float, float]:
    z0 = views[0].clone().requires_grad_()
    loss = IntNaClLoss(num_positives=M, denominator=denominator)(z0, views[1], extra=views[2 : M + 1])
    (gradient,) = torch.autograd.grad(loss, z0)
    return loss.item(), gradient.norm().item()
