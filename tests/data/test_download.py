"""Downloads from a local server: whole and right, or nothing; archives cannot write outside their folder."""

import hashlib
import io
import re
import shutil
import tarfile
import urllib.parse
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from intnacl.data.download import Archive, unpacked
from intnacl.errors import InputError
from mistakes import must_refuse


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


class Breaking(BaseHTTPRequestHandler):
    """Promises as many bytes as the last part of the address says, and sends 10."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", urllib.parse.unquote(self.path.rpartition("/")[2]))
        self.end_headers()
        self.wfile.write(b"0123456789")

    def log_message(self, *_: Any) -> None:
        pass


def serve(handler: Any) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "site").mkdir()
    yield from serve(partial(Quiet, directory=str(tmp_path / "site")))


@pytest.fixture
def breaking_site() -> Iterator[str]:
    yield from serve(Breaking)


def tar(**members: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def packed_zip(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


PACKED = tar(**{"set/train": b"images", "set/meta": b"names"})


def archive(site: str, packed: bytes = PACKED, kind: str = "tar.gz") -> Archive:
    return Archive(url=f"{site}/set.{kind}", md5=hashlib.md5(packed).hexdigest(), folder="set")


def visible(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if not path.name.endswith(".lock"))


def test_downloaded_checked_and_unpacked_once(site, tmp_path, root):
    (tmp_path / "site" / "set.tar.gz").write_bytes(PACKED)
    folder = unpacked(archive(site), root)
    assert (folder / "train").read_bytes() == b"images"
    assert visible(root) == ["set", "set.tar.gz"]
    for place in (tmp_path / "site", root):
        (place / "set.tar.gz").unlink()
    assert unpacked(archive(site), root) == folder  # nothing more is asked of the network


def test_a_wrong_or_incomplete_download_leaves_nothing(site, breaking_site, tmp_path, root):
    (tmp_path / "site" / "set.tar.gz").write_bytes(PACKED)
    wrong = archive(site, b"something else")
    must_refuse(unpacked, wrong, root, f"md5 is .*, not {wrong.md5}")
    for promised, reason in [("1000", "10 "), *((junk, "md5 is") for junk in ("junk", "-5", "1e3", "²"))]:
        broken = Archive(url=f"{breaking_site}/{urllib.parse.quote(promised)}", md5="0" * 32, folder="set")
        must_refuse(unpacked, broken, root, rf"set is not in .* could not be fetched \(.*{reason}")
    assert visible(root) == []


def test_a_failed_download_says_which_file_to_put_where(site, tmp_path, root):
    offline, missing = archive("http://127.0.0.1:1"), archive(site)  # nobody listens at the first
    for wanted, reason in ((offline, "refused"), (missing, "404")):
        remedy = f"Get {wanted.url} and save it as {root / 'set.tar.gz'}, or unpack it to {root / 'set'}."
        must_refuse(unpacked, wanted, root, f"{reason}.*{re.escape(remedy)}")
    (tmp_path / "site" / "set.tar.gz").write_bytes(PACKED)
    must_refuse(unpacked, missing, tmp_path / "new", "downloading is switched off", download=False)
    assert not (tmp_path / "new").exists()


def test_an_archive_put_there_by_hand_is_unpacked_without_network(root):
    root.mkdir()
    wanted = archive("http://127.0.0.1:1")
    (root / "set.tar.gz").write_bytes(PACKED[:-1])
    must_refuse(unpacked, wanted, root, r"set\.tar\.gz is not the official archive")
    assert visible(root) == ["set.tar.gz"]
    (root / "set.tar.gz").write_bytes(PACKED)
    assert (unpacked(wanted, root, download=False) / "meta").read_bytes() == b"names"


def test_a_zip_file_is_unpacked_inside_its_folder_alone(root):
    root.mkdir()
    packed = packed_zip(**{"set/train": b"images", "../evil": b"x", "/set/evil": b"x"})
    (root / "set.zip").write_bytes(packed)
    folder = unpacked(archive("http://127.0.0.1:1", packed, "zip"), root)
    assert (folder / "train").read_bytes() == b"images"
    assert [path.relative_to(root).parts[0] for path in root.parent.rglob("evil")] == ["set"]
    assert not Path("/set").exists()
    for damaged in (packed[:60], packed.replace(b"images", b"mangled"), b"PK\x05\x06"):
        shutil.rmtree(folder, ignore_errors=True)
        (root / "set.zip").write_bytes(damaged)
        with pytest.raises(InputError, match=r"set\.zip cannot be unpacked"):
            unpacked(archive("http://127.0.0.1:1", damaged, "zip"), root)
    assert visible(root) == ["set.zip"]


@pytest.mark.parametrize(
    "packed",
    [tar(**{"../evil": b"x"}), tar(**{"other/x": b"x"}), b"no archive", PACKED[:60]],
    ids=["outside", "elsewhere", "no archive", "cut short"],
)
def test_a_bad_archive_writes_nothing(root, packed):
    root.mkdir()
    (root / "set.tar.gz").write_bytes(packed)
    must_refuse(unpacked, archive("http://127.0.0.1:1", packed), root, "archive")
    assert visible(root) == ["set.tar.gz"]
    assert not list(root.parent.rglob("evil"))
