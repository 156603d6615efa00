"""The command line as a user meets it."""

import subprocess
import sys
from pathlib import Path


def intnacl(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m intnacl` and keep what it prints."""
    return subprocess.run(
        [sys.executable, "-m", "intnacl", *arguments], capture_output=True, text=True, timeout=240
    )


def test_help_names_the_program() -> None:
    result = intnacl("--help")
    assert result.returncode == 0
    assert "intnacl" in result.stdout


def test_datasets_lists_names_sizes_and_the_place_of_files(tmp_path: Path) -> None:
    result = intnacl("datasets", "--root", str(tmp_path))
    assert result.returncode == 0
    for word in ("digits", "cifar100", "50,000 + 10,000", "folder:PATH", str(tmp_path), "INTNACL_DATA"):
        assert word in result.stdout


def test_datasets_show_draws_and_tells_the_checksum(tmp_path: Path) -> None:
    result = intnacl("datasets", "show", "digits", "--out", str(tmp_path / "grid.png"), "--rows", "4")
    assert result.returncode == 0, result.stderr
    assert "1,442 pictures, 8×8, 10 classes; sha256 c6fcf5eb" in result.stdout
    assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")


def test_datasets_show_refuses_broken_pictures_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "pets").mkdir()
    (tmp_path / "pets" / "bad.png").write_bytes(b"")
    result = intnacl("datasets", "show", f"folder:{tmp_path / 'pets'}", "--root", str(tmp_path), "--strict")
    assert result.returncode == 2
    assert "bad.png" in result.stderr
    assert "Traceback" not in result.stderr
