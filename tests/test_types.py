"""Type checkers refuse wrong calls of the loss, and know the return types of right ones."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GOOD = """from typing import assert_type
import torch
from torch import Tensor
from intnacl import IntNaClLoss
def w(z0: Tensor, z1: Tensor, clean: Tensor) -> Tensor:
    return clean
z = torch.ones(4, 2)
loss = IntNaClLoss.preset("intcl", temperature=0.2)
assert_type(loss, IntNaClLoss)
assert_type(loss(z, z, adversarial=z, weight=z), Tensor)
assert_type(IntNaClLoss(alpha=1.0, weight=w)(z, z, adversarial=z), Tensor)
assert_type(IntNaClLoss(weight="relative").terms(z, z, mixed=[z]), dict[str, Tensor])
"""
BAD = """import torch
from intnacl import IntNaClLoss
z = torch.ones(4, 2)
loss = IntNaClLoss()
IntNaClLoss(temprature=0.1, negatives=7)
IntNaClLoss(negatives=7)
IntNaClLoss(nacl="nac")
IntNaClLoss(weight="two")
IntNaClLoss(weight=len)
IntNaClLoss.preset("simcrl")
loss(z, z, weight=1.0)
loss(z, z, mixd=[z])
loss(z, [z])
loss(z, z).backwards()
"""


def printed(*words: str) -> str:
    return subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True).stdout


def mypy(file: Path) -> set[int]:
    """Return the lines that mypy refuses."""
    cache = f"--cache-dir={ROOT / '.mypy_cache'}"
    out = printed("mypy", "--strict", cache, "--config-file=", str(file))
    return {int(line.split(":")[1]) for line in out.splitlines() if ": error: " in line}


def pyright(file: Path) -> set[int]:
    """Return the lines that pyright refuses; basedpyright includes the Node.js that pyright needs."""
    settings = {"typeCheckingMode": "standard", "extraPaths": [str(ROOT / "src")]}
    (file.parent / "pyrightconfig.json").write_text(json.dumps(settings))
    out = printed("basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(file.parent))
    found = json.loads(out)["generalDiagnostics"]
    return {one["range"]["start"]["line"] + 1 for one in found if one["severity"] == "error"}


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_type_checkers_only_refuse_wrong_calls(checker, tmp_path):
    file = tmp_path / "calls.py"
    for text, refused in ((GOOD, set()), (BAD, set(range(5, 15)))):
        file.write_text(text)
        assert checker(file) == refused
