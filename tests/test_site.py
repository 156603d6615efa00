"""The documentation site builds without warnings, works offline, and fits wide and narrow screens."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from draw_notebooks import NOTEBOOKS, execute

from browser import Browser

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
PAGES = sorted(path.stem for path in (ROOT / "docs").glob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from a copy of the repository without network; warnings are errors."""
    pytest.importorskip("myst_nb")
    checkout, out = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("site")
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    for name in files.stdout.splitlines():
        if (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            (checkout / name).write_bytes((ROOT / name).read_bytes())
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "--fail-on-warning",
        "--keep-going",
        "--quiet",
        "-c",
        "docs",
        ".",
        out,
    ]
    environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "https_proxy": "http://127.0.0.1:9"}
    built = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return out


def test_names_in_the_reference_link_to_their_source(site):
    page = (site / "docs/reference/intnacl.losses.nacl.html").read_text()
    number = page.split("files/src/intnacl/losses/nacl.py.html#line-")[1].split('"')[0]
    source = (site / "files/src/intnacl/losses/nacl.py.html").read_text()
    assert f'id="line-{number}"' in source
    assert (ROOT / "src/intnacl/losses/nacl.py").read_text().splitlines()[int(number) - 1].startswith("def ")


def test_links_to_code_lead_to_the_line(site):
    page = (site / "docs/losses.html").read_text()
    assert 'href="../files/src/intnacl/losses/config.py.html#line-' in page  # PRESETS
    assert "_downloads" not in page


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1300, 400])
def test_no_page_scrolls_sideways_or_needs_the_network(site: Path, browser: Browser, width, dark):
    others = ["../CONTRIBUTING", "../CHANGELOG", "../benchmarks/README", "../results/README"]
    notebooks = [f"notebooks/{path.stem}" for path in NOTEBOOKS]
    reference = ["reference/intnacl.losses.integrated", "../files/src/intnacl/losses/nacl.py"]
    for name in PAGES + others + notebooks + reference:
        browser.open((site / "docs" / f"{name}.html").resolve(), width=width, dark=dark)
        wide, shown = browser.js(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert wide <= shown, f"{name} is {wide} pixels wide at {shown}"
        assert not browser.js("[...document.images].filter((image) => !image.naturalWidth).length"), name
    assert browser.complaints == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_stores_its_pictures(path, tmp_path):
    def kinds(notebook: nbformat.NotebookNode) -> list[list[str]]:
        return [
            sorted({key for output in cell.outputs for key in output.get("data", {"text": ""})})
            for cell in notebook.cells
            if cell.cell_type == "code"
        ]

    stored = nbformat.read(path, as_version=4)
    assert kinds(execute(path, tmp_path)) == kinds(stored)
    assert sum("image/png" in kind for kind in kinds(stored)) >= 2
    assert path.stat().st_size < 300_000
