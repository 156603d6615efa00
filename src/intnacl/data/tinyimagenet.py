"""TinyImageNet from the official archive or its unpacked folder: 64×64, JPEG, some of them grey.

Its own test images have no labels, so the split `test` is the official validation split, as usual.
"""

from pathlib import Path

from intnacl.data.cache import Source, cached
from intnacl.data.download import Archive, unpacked
from intnacl.data.images import ImageSet, Item, LoadRequest, decode_all, is_image
from intnacl.errors import InputError
from intnacl.files import check_file

# Its authors publish no checksum. This md5 is the one that others check, such as Avalanche (ContinualAI) in
# benchmarks/datasets/tiny_imagenet/tiny_imagenet.py; the file has 248,100,043 bytes.
ARCHIVE = Archive(
    url="https://cs231n.stanford.edu/tiny-imagenet-200.zip",
    md5="90528d7ca1a48142e341f4ef8d21d0de",
    folder="tiny-imagenet-200",
)
REMEDY = f"delete the folder and unpack {ARCHIVE.url} again"
SIZE = 64


def load_tinyimagenet(request: LoadRequest) -> ImageSet:
    """Decode once into the cache; classes in the order of `wnids.txt`, by their first name in `words.txt`."""
    folder = request.root  # which may be the unpacked folder itself, under any name
    if not (folder / "wnids.txt").is_file():
        folder = unpacked(ARCHIVE, request.root, download=request.download)
    wnids = _lines(folder / "wnids.txt")
    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    if request.split == "train":
        items = [
            Item(str(path.relative_to(folder)), path, label)
            for wnid, label in label_of.items()
            for path in _images_in(folder / "train" / wnid / "images")
        ]
    else:
        items = _validation_items(folder, label_of)
    words = {}
    named = folder / "words.txt"
    if named.exists() or named.is_symlink():
        words = dict(line.split("\t", 1) for line in _lines(named) if "\t" in line)
    lists = [folder / "wnids.txt", folder / "val" / "val_annotations.txt"]
    source = Source(
        name="tinyimagenet",
        origin=folder,
        split=request.split,
        size=SIZE,
        files=[*(path for path in lists if path.exists()), *(folder / item.name for item in items)],
        classes=tuple(words[wnid].split(",")[0] if wnid in words else wnid for wnid in wnids),
    )
    return cached(request.root, source, lambda out: decode_all(items, len(items), out, size=SIZE, exact=True))


def _lines(path: Path) -> list[str]:
    check_file(path)
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}.") from error
    if not lines:
        raise InputError(f"{path} is empty: {REMEDY}.")
    return lines


def _images_in(folder: Path) -> list[Path]:
    paths = sorted(path for path in folder.iterdir() if is_image(path)) if folder.is_dir() else []
    if not paths:
        raise InputError(f"{folder} is missing or holds no image: {REMEDY}.")
    for path in paths:
        check_file(path)
    return paths


def _validation_items(folder: Path, label_of: dict[str, int]) -> list[Item]:
    listed = folder / "val" / "val_annotations.txt"
    label_by_file = {}
    for number, line in enumerate(_lines(listed), start=1):
        name, wnid, *_ = (*line.split("\t"), "")
        if wnid not in label_of:
            raise InputError(f"{listed}, line {number}: {wnid!r} is not in wnids.txt.")
        label_by_file[name] = label_of[wnid]
    paths = _images_in(folder / "val" / "images")
    odd = {path.name for path in paths} ^ label_by_file.keys()
    if odd:
        raise InputError(
            f"{listed} and {folder / 'val' / 'images'} differ in {len(odd)} files, such as {min(odd)}."
        )
    return [Item(str(path.relative_to(folder)), path, label_by_file[path.name]) for path in paths]
