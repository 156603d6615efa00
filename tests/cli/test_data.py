"""`datasets` as a user meets it."""

from pathlib import Path

from command_line import intnacl


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


def test_datasets_show_skips_broken_pictures_or_refuses_them(tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "pets").mkdir()
    (tmp_path / "pets" / "bad.png").write_bytes(b"")
    for i in range(3):
        Image.new("RGB", (8, 8), (i, i, i)).save(tmp_path / "pets" / f"{i}.png")
    name, out = f"folder:{tmp_path / 'pets'}", str(tmp_path / "grid.png")
    skipping = intnacl("datasets", "show", name, "--root", str(tmp_path), "--out", out)
    message = f"{name}, train: 1 of 4 pictures are broken: bad.png (empty)\n"
    assert skipping.returncode == 0
    assert skipping.stderr == f"intnacl: warning: {message}"
    assert "3 pictures, 32×32, unlabelled, 1 broken skipped" in skipping.stdout
    strict = intnacl("datasets", "show", name, "--root", str(tmp_path), "--out", out, "--strict")
    assert strict.returncode == 2
    assert strict.stderr == f"intnacl: {message}"
