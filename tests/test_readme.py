"""The README's examples run, and its commands exist."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


def block(language: str, opening: str) -> str:
    """Return the code block of this language with this beginning."""
    (found,) = re.findall(rf"```{language}\n({re.escape(opening)}.*?)```", TEXT, re.DOTALL)
    return found


def test_the_loop_reaches_every_weight():
    names: dict[str, object] = {}
    exec(block("python", "import torch"), names)
    assert all(torch.count_nonzero(parameter.grad) for parameter in names["model"].parameters())


def test_the_attack_on_a_classifier_runs(capsys):
    names: dict[str, object] = {}
    exec(block("python", "import torch"), names)
    exec(block("python", "from intnacl.attacks.named"), names)
    found = ast.literal_eval(capsys.readouterr().out)
    assert [(row["name"], row["eps"], row["images"]) for row in found["attacks"]] == [
        ("pgd_tuned", 8 / 255, 50)
    ]


def test_the_commands_exist():
    targets = re.findall(r"^make ([\w-]+)", block("sh", "make"), re.MULTILINE)
    rules = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert targets
    assert set(targets) <= rules
    help_text = subprocess.run(
        [sys.executable, "-m", "intnacl", "--help"], capture_output=True, text=True, check=True
    ).stdout
    for command in set(re.findall(r"(?:\.venv/bin/|`)intnacl (\w+)", TEXT)):
        assert re.search(rf"\b{command}\b", help_text), command
