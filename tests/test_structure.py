"""The structure of the package: one-way imports between rooms, and documented public names."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "intnacl"
# A room imports from itself and from the rooms before it, never from a later one.
ROOMS = (
    "errors", "files", "console", "losses", "models", "attacks", "data", "training", "evaluation", "theory",
    "plots", "runs", "paper", "__init__", "cli", "__main__",
)  # fmt: skip
MODULES = sorted(SRC.rglob("*.py"))


def room(module: str) -> str:
    """`intnacl.losses.nacl` -> `losses`; the package itself -> `__init__`."""
    names = module.split(".")
    return names[1] if len(names) > 1 else "__init__"


def imported_modules(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return [name for name in names if name.split(".")[0] == "intnacl"]


def name_of(path: Path) -> str:
    return ".".join(("intnacl", *path.relative_to(SRC).with_suffix("").parts))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_one_way(path):
    here = ROOMS.index(room(name_of(path)))
    for target in imported_modules(path):
        assert ROOMS.index(room(target)) <= here, f"{name_of(path)} must not import {target}"


def public_definitions(tree: ast.Module | ast.ClassDef) -> list[ast.FunctionDef | ast.ClassDef]:
    """Return the public functions and classes, and the public methods of the classes."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            found.append(node)
            found += public_definitions(node) if isinstance(node, ast.ClassDef) else []
    return found


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_public_names_are_documented(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), f"{path}: no module docstring"
    for node in public_definitions(tree):
        assert ast.get_docstring(node), f"{name_of(path)}.{node.name} has no docstring"


def test_losses_only_import_torch():
    allowed = {"torch", "intnacl", *sys.stdlib_module_names}
    for path in (SRC / "losses").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            foreign = {name.split(".")[0] for name in names} - allowed
            assert not foreign, f"{path}: imports {foreign}"
