"""Archives from the network: downloaded, checked by their md5, unpacked; an error names the manual steps."""

import hashlib
import tarfile
import urllib.request
import zipfile
import zlib
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from intnacl import files
from intnacl.console import progress
from intnacl.errors import InputError

BLOCK = 1 << 20
TIMEOUT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Archive:
    """An official archive, .tar.gz or .zip, its md5, and the folder that it unpacks to."""

    url: str
    md5: str
    folder: str

    @property
    def file(self) -> str:
        """The archive's file name, as in its address."""
        return self.url.rsplit("/", 1)[-1]


def unpacked(archive: Archive, root: Path, *, download: bool = True) -> Path:
    """Return the archive's folder in `root` (or `root` itself), downloading and unpacking it if needed."""
    for folder in (root / archive.folder, root):
        if folder.name == archive.folder and folder.is_dir():
            return folder
    packed, folder = root / archive.file, root / archive.folder
    if not packed.exists() and not download:
        raise InputError(_by_hand(archive, root, "downloading is switched off"))
    try:
        root.mkdir(parents=True, exist_ok=True)
        with files.lock(root / f".{archive.file}.lock"):
            if not packed.exists():
                fetch(archive, packed)
            if not folder.is_dir():
                _unpack(archive, packed, folder)
    except (OSError, HTTPException) as error:
        raise InputError(_by_hand(archive, root, str(error))) from error
    return folder


def _by_hand(archive: Archive, root: Path, reason: str) -> str:
    """Return the message that says how to get the archive by hand."""
    return (
        f"{archive.folder} is not in {root} and could not be fetched ({reason}). "
        f"Get {archive.url} and save it as {root / archive.file}, or unpack it to {root / archive.folder}."
    )


def fetch(archive: Archive, target: Path) -> None:
    """Download to `target`; nothing appears there unless it is complete and has the right md5."""
    digest, received = hashlib.md5(usedforsecurity=False), 0
    with urllib.request.urlopen(archive.url, timeout=TIMEOUT_S) as reply, files.new_file(target) as out:
        expected: int | None = reply.length  # None if the server sends none or an invalid one
        with progress(f"downloading {archive.file}", expected, in_bytes=True) as advance:
            while block := reply.read(BLOCK):
                out.write(block)
                digest.update(block)
                received += len(block)
                advance(len(block))
        if expected is not None and received < expected:
            raise OSError(f"the connection broke after {received} of {expected} bytes")
        if digest.hexdigest() != archive.md5:
            raise OSError(f"the download's md5 is {digest.hexdigest()}, not {archive.md5}")


def _unpack(archive: Archive, packed: Path, folder: Path) -> None:
    with packed.open("rb") as handle:
        md5 = hashlib.file_digest(handle, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if md5 != archive.md5:
        raise InputError(
            f"{packed} is not the official archive (md5 {md5}, not {archive.md5}): delete it and retry."
        )
    with files.new_folder(folder) as partial:
        try:
            if packed.suffix == ".zip":
                with zipfile.ZipFile(packed) as archived:
                    archived.extractall(partial)  # it drops `..` and roots in the members' names
            else:
                with tarfile.open(packed) as tar:
                    tar.extractall(partial, filter="data")
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, RuntimeError) as error:
            raise InputError(f"{packed} cannot be unpacked: {error}.") from error
        top = partial / archive.folder  # its content moves up into `partial`
        if not top.is_dir():
            raise InputError(f"the archive holds no folder {top.name}.")
        for file in top.iterdir():
            file.rename(partial / file.name)
        top.rmdir()
