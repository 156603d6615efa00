"""docs/losses.md shows the actual presets and every equation of the paper."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from intnacl import IntNaClLoss
from intnacl.losses.config import PRESETS

TEXT = (Path(__file__).parents[1] / "docs" / "losses.md").read_text()


def section(title: str) -> str:
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_every_equation_has_a_row():
    first_cells = ", ".join(re.findall(r"^\| ([^|]+) \|", section("Equations"), re.MULTILINE)).split(", ")
    numbered = [cell for cell in first_cells if re.fullmatch(r"(Eq\. |S)\d+", cell)]
    assert sorted(numbered) == sorted(
        [f"Eq. {number}" for number in range(1, 13)] + [f"S{number}" for number in range(1, 6)]
    )


def test_the_table_of_special_cases_is_the_presets():
    rows = re.findall(
        r"^\| `(\w+)` \|[^|]+\| ?`?([^|`]*)`? \| ([^|]+) \|$", section("Special cases"), re.MULTILINE
    )
    assert {name: eval(f"dict({keywords})") for name, keywords, _ in rows} == PRESETS
    for name, _, views in rows:
        counts = [1 if word == "an" else int(word) for word in re.findall(r"\b(\d+|an)\b", views)]
        assert counts == [count for count in IntNaClLoss.preset(name).views_needed if count]


def test_the_defaults_it_quotes_are_the_defaults():
    quoted = dict(re.findall(r"`(\w+)=([\w.\"]+)`", section("Special cases").split("|")[0]))
    config = IntNaClLoss().config
    assert len(quoted) == 7
    assert {name: repr(getattr(config, name)).replace("'", '"') for name in quoted} == quoted


def names_of(title: str, number: int) -> dict[str, Any]:
    """Return the names that the section's example defines."""
    names: dict[str, Any] = {}
    exec(section(title).split("```python\n")[number].split("```")[0], names)
    return names


def test_its_example_with_all_views_reaches_every_weight():
    model = names_of("Mixed and adversarial views", 1)["model"]
    assert all(torch.count_nonzero(parameter.grad) for parameter in model.parameters())


def test_its_examples_of_custom_weights_have_gradients():
    names = names_of("Readings", 1)
    assert all(torch.count_nonzero(names[view].grad) for view in ("z0", "z1", "adversarial"))


def test_its_example_keeps_adversarial_statistics_apart():
    model = names_of("Readings", 2)["model"]
    norm = model[1]
    assert norm.running_mean.all()
    assert norm.adversarial.running_mean.all()
    assert not torch.equal(norm.running_mean, norm.adversarial.running_mean)
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert norm.groups == ((1, False),)


def test_its_loop_on_two_ranks_leaves_both_with_the_same_weights(tmp_path):
    code = section("Several ranks").split("```python\n")[1].split("```")[0]
    loop, end, _ = code.partition("dist.destroy_process_group()")
    assert end
    # Some releases of torch occasionally abort when threads of gloo are alive at the interpreter's exit.
    leave = (
        "import os\n"
        "torch.save(model.module.state_dict(), f'{dist.get_rank()}.pt')\n"
        "dist.barrier()\n"
        "os._exit(0)\n"
    )
    (tmp_path / "loop.py").write_text(loop + leave)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    found = subprocess.run([*launcher, "loop.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert found.returncode == 0, found.stderr
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
