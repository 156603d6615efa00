"""What is written aside appears whole or not at all."""

import threading
import time
from pathlib import Path

import pytest

from intnacl import files
from intnacl.errors import InputError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    with files.new_file(tmp_path / "a") as out:
        out.write(b"half")
        assert not (tmp_path / "a").exists()
        out.write(b" and half")
    assert (tmp_path / "a").read_bytes() == b"half and half"
    assert names(tmp_path) == ["a"]


def test_a_failure_leaves_no_file_and_keeps_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(TypeError), files.new_file(tmp_path / "a") as out:
        out.writelines([b"new", "not bytes"])  # type: ignore[list-item]
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_a_file_is_written_with_the_folders_above_it_or_named(tmp_path: Path) -> None:
    files.write_file(tmp_path / "sub" / "a", b"whole")
    assert (tmp_path / "sub" / "a").read_bytes() == b"whole"
    with pytest.raises(InputError, match=r"sub/a/b could not be written: a file stands .* Move it"):
        files.write_file(tmp_path / "sub" / "a" / "b", b"")


def test_an_error_that_is_not_the_disks_is_not_told_as_one() -> None:
    with pytest.raises(RuntimeError, match="out of memory"), files.disk_errors(Path("x")):
        raise RuntimeError("out of memory")


def test_a_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    with files.new_folder(tmp_path / "a") as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "x").write_bytes(b"1")
        assert not (tmp_path / "a").exists()
    assert (tmp_path / "a" / "sub" / "x").read_bytes() == b"1"
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o755


def test_a_failure_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), files.new_folder(tmp_path / "a") as folder:
        (folder / "missing" / "x").write_bytes(b"1")
    assert names(tmp_path) == []


def test_the_folder_that_came_first_stays(tmp_path: Path) -> None:
    with files.new_folder(tmp_path / "a") as late:
        (late / "x").write_bytes(b"late")
        with files.new_folder(tmp_path / "a") as early:
            (early / "x").write_bytes(b"early")
    assert (tmp_path / "a" / "x").read_bytes() == b"early"
    assert names(tmp_path) == ["a"]


def test_the_lock_lets_one_in_at_a_time(tmp_path: Path) -> None:
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        with files.locked(tmp_path / "lock") as alone:
            assert alone
            inside += 1
            most = max(most, inside)
            time.sleep(0.05)
            inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_file_in_the_way_of_a_folder_is_told(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    wanted = tmp_path / name
    with (
        pytest.raises(InputError, match=f"{name} could not be written: a file stands"),
        files.disk_errors(wanted),
    ):
        wanted.mkdir(parents=True, exist_ok=True)
