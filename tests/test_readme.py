"""The README's examples run, its commands exist, and its tree is the tree."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from test_structure import imported_modules, name_of

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "intnacl"
TEXT = (ROOT / "README.md").read_text()


def block(language: str, opening: str) -> str:
    """The code block of this language that begins so."""
    (found,) = re.findall(rf"```{language}\n({re.escape(opening)}.*?)```", TEXT, re.DOTALL)
    return found


def test_the_example_runs_and_reaches_every_weight() -> None:
    names: dict[str, object] = {}
    exec(block("python", "import torch"), names)
    exec(block("python", "from intnacl.attacks"), names)
    gradients = [parameter.grad for parameter in names["model"].parameters()]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
    assert all(torch.count_nonzero(gradient) for gradient in gradients)


def test_the_attack_on_a_classifier_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    exec(block("python", "import torch"), names)
    exec(block("python", "from intnacl.evaluation"), names)
    found = ast.literal_eval(capsys.readouterr().out)
    assert [(row["name"], row["eps"], row["images"]) for row in found["attacks"]] == [
        ("pgd_tuned", 8 / 255, 50)
    ]


def test_the_commands_exist() -> None:
    targets = re.findall(r"^make ([\w-]+)", block("sh", "make"), re.MULTILINE)
    rules = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert targets
    assert set(targets) <= rules
    help_text = subprocess.run(
        [sys.executable, "-m", "intnacl", "--help"], capture_output=True, text=True, check=True
    ).stdout
    for command in set(re.findall(r"(?:\.venv/bin/|`)intnacl (\w+)", TEXT)):
        assert re.search(rf"\b{command}\b", help_text), command


def tree_entries() -> list[str]:
    """Paths of the tree, from indentation: two spaces a level; a folder ends in a slash."""
    folders: list[str] = []
    paths = []
    for line in block("", "src/intnacl/").splitlines():
        indent, name, _ = re.fullmatch(r"( *)(\S+)(.*)", line).groups()
        folders[len(indent) // 2 :] = [name]
        paths.append("".join(folders))
    return paths


def test_the_tree_is_complete_and_true() -> None:
    modules = {path for path in SRC.rglob("*.py") if path.name != "__init__.py"}
    packages = {path.parent for path in SRC.rglob("__init__.py")}
    shown = {ROOT / entry for entry in tree_entries() if entry.startswith("src/")}
    assert sorted(modules | packages) == sorted(shown)
    assert all((ROOT / entry).exists() for entry in tree_entries())


def test_files_import_only_from_files_above_them() -> None:
    files = [ROOT / entry for entry in tree_entries() if entry.startswith("src/") and entry.endswith(".py")]
    place = {name_of(path): i for i, path in enumerate(files)}
    for path in files:
        below = [name for name in imported_modules(path) if place.get(name, -1) > place[name_of(path)]]
        assert not below, f"{name_of(path)} imports {below}, which the tree shows below it"


def test_every_line_of_the_tree_says_something() -> None:
    lines = block("", "src/intnacl/").splitlines()[1:]
    assert [line for line in lines if not re.fullmatch(r" *\S+ {2,}\S.+", line)] == []
