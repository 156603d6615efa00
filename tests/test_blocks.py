"""Every Python and shell block of the pages runs, unless its page gives a reason why it cannot."""

import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
from PIL import Image

from blocks import PAGES, ROOT, blocks, python_names, runnable
from python2 import python2_pickle
from shortened import resolve
from tiny_run import measured_original, write_images

EXCERPTS = "theory.md"  # quotes lines of the source, which tests/theory/test_walkthrough.py compares
SLOW_PYTHON = ("robust.md", "trackers.md")  # their blocks train on CIFAR-10
PREPARED = {  # the finished runs that a page's Python blocks need
    "README.md": ("runs/mine",),
    "data.md": ("runs/mine",),
    "digits.md": ("RUN",),
    "pretrained.md": ("runs/mine",),
    "quickstart.md": ("runs/intnacl",),
}
SHELL_PREPARED = {  # the finished runs that a page's commands need
    "README.md": ("runs/small",),
    "digits.md": ("RUN",),
    "explore.md": ("runs/a", "runs/b", "runs/c100"),
}
SHELL = [page for page in PAGES if runnable(page, "sh")]


def name_of(page: Path) -> str:
    return page.name


@pytest.fixture
def _forkserver():
    """Start data loader workers from a process of its own: forks of this one, with its threads, may hang."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("forkserver", force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


def write_cifar(root: Path) -> None:
    """Write small CIFAR-10 and CIFAR-100 folders of random pixels in the original format."""
    draw = np.random.default_rng(0)

    def part(key: str, classes: int) -> bytes:
        content = {
            b"data": draw.integers(0, 256, (120, 3072), dtype=np.uint8),
            key.encode(): [i % classes for i in range(120)],
        }
        return python2_pickle(content)

    for folder in ("cifar-10-batches-py", "cifar-100-python"):
        (root / folder).mkdir(parents=True)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (root / "cifar-10-batches-py" / name).write_bytes(part("labels", 10))
    for name in ("train", "test"):
        (root / "cifar-100-python" / name).write_bytes(part("fine_labels", 20))
    meta = {
        "cifar-10-batches-py/batches.meta": (b"label_names", 10),
        "cifar-100-python/meta": (b"fine_label_names", 20),
    }
    for path, (key, count) in meta.items():
        (root / path).write_bytes(python2_pickle({key: [b"class %d" % i for i in range(count)]}))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder that links to the repository's, in a home folder with images and a small CIFAR."""
    home = tmp_path / "home"
    write_images(home / "images", side=32, count=16)
    for path in (home / "images" / "train").rglob("*.png"):
        picture = home / "pictures" / path.parent.name / f"{path.stem}.jpg"
        picture.parent.mkdir(parents=True, exist_ok=True)
        Image.open(path).save(picture)
    shutil.copytree(home / "images" / "test", home / "new-pictures")
    write_cifar(home / "data")
    here = home / "here"
    here.mkdir()
    for name in ("results", "examples", "benchmarks", "tools"):
        (here / name).symlink_to(ROOT / name)
    (here / "PATH").symlink_to(ROOT)
    for name in ("pictures", "new-pictures"):
        (here / name).symlink_to(home / name)
    (home / "bin").mkdir()
    (home / "bin" / "intnacl").write_text(
        f'#!/bin/sh\nexec {sys.executable} {ROOT}/tests/shortened.py "$@"\n'
    )
    (home / "bin" / "intnacl").chmod(0o755)
    monkeypatch.chdir(here)
    for name, value in {
        "HOME": home,
        "INTNACL_DATA": home / "data",
        "XDG_CACHE_HOME": home / "cache",
        "PATH": f"{home / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}",
    }.items():
        monkeypatch.setenv(name, str(value))
    return here


def prepare(runs: tuple[str, ...]) -> None:
    for run in runs:
        shutil.copytree(measured_original(), run)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_have_a_language_and_only_code_has_a_reason(page):
    for block in blocks(page):
        assert block.language in ("python", "sh", "toml", "text", "{eval-rst}"), block.place
        assert block.reason is None or (block.language in ("python", "sh") and len(block.reason) > 9), (
            block.place
        )


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page.name in SLOW_PYTHON else ())
        for page in PAGES
        if page.name != EXCERPTS and runnable(page, "python")
    ],
    ids=name_of,
)
@pytest.mark.usefixtures("_forkserver")
def test_python_runs(page, folder, monkeypatch):
    prepare(PREPARED.get(page.name, ()))
    monkeypatch.setattr("intnacl.runs.stages.resolve", resolve)
    monkeypatch.setitem(sys.modules, "mlflow", MagicMock())  # the real one needs a server and a database
    for name, value in {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "RANK": "0",
        "WORLD_SIZE": "1",
    }.items():
        monkeypatch.setenv(name, value)
    python_names(page)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", SHELL, ids=name_of)
def test_shell_runs(page, folder, monkeypatch):
    """The blocks run in order, with the Python blocks between them."""
    prepare(SHELL_PREPARED.get(page.name, ()))
    monkeypatch.setattr("intnacl.runs.stages.resolve", resolve)
    monkeypatch.setitem(sys.modules, "mlflow", MagicMock())
    names: dict[str, object] = {}
    for block in blocks(page, "python", "sh"):
        if block.reason is not None:
            continue
        if block.language == "python":
            block.run(names)
            continue
        command = ["bash", "-euo", "pipefail", "-c", block.code]
        result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert result.returncode == 0, f"{block.place}\n{result.stdout[-2000:]}{result.stderr[-2000:]}"
