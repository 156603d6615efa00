"""A release: sdist and wheel are built, the wheel works, and the CI workflow calls existing targets."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import intnacl

ROOT = Path(__file__).parents[1]
FILES = ("pyproject.toml", "README.md", "LICENSE", "src")


def output(*words: object, **options: object) -> str:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment_without_a_network(tmp_path):
    """The dependencies are those of this environment, without intnacl itself."""
    pytest.importorskip("build")
    source, built, place = tmp_path / "source", tmp_path / "dist", tmp_path / "environment"
    source.mkdir()
    for name in FILES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    shutil.rmtree(source / "src" / "intnacl.egg-info", ignore_errors=True)
    output(
        sys.executable, "-m", "build", "--no-isolation", "--outdir", built, source
    )  # the wheel from the sdist
    (sdist,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
    shipped = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "intnacl" / "shipped").rglob("*")
        if path.is_file()
    }
    with zipfile.ZipFile(wheel) as archive:
        assert shipped <= set(archive.namelist())
    with tarfile.open(sdist) as archive:
        assert shipped <= {name.partition("/src/")[2] for name in archive.getnames()}
    assert wheel.name.startswith(f"intnacl-{intnacl.__version__}-")

    output(sys.executable, "-m", "venv", place)
    python = place / "bin" / "python"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    packages = output(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    output(python, "-m", "pip", "install", "--no-index", "--no-deps", wheel, env=environment)
    # A plain path in a .pth file does not expose editable installations there, such as that of intnacl.
    (Path(packages) / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    empty = tmp_path / "empty"
    empty.mkdir()
    printed = output(python, ROOT / "tests" / "smoke.py", cwd=empty, env=environment)
    assert printed.endswith("the smoke test passed\n")


def test_the_workflow_calls_existing_targets():
    yaml = pytest.importorskip("yaml")
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yml").read_text())["jobs"]
    lines = "\n".join(step.get("run", "") for job in jobs.values() for step in job["steps"])
    targets = re.findall(r"^([\w-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    called = re.findall(r"make ([\w-]+)", lines)
    assert "check" in called
    assert set(called) <= set(targets)
    assert re.findall(r"\.\./(tests/\S+)", lines) == ["tests/smoke.py"]
    assert (ROOT / "tests" / "smoke.py").exists()
    oldest = re.search(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())[1]
    assert f"torch=={oldest}.0" in jobs["wheel"]["strategy"]["matrix"]["torch"]
