"""`folder:PATH`: a folder of images of any size.

Class sub-folders give labels; images directly in the folder are unlabelled, for pretraining. If PATH has a
`train` (or `training`) and a `test` (or `testing`, `val`, `valid`, `validation`) folder, or nothing but such
folders, each of them is a split of this kind, and other folders are ignored. Case does not matter.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from intnacl.data.cache import Source, cached
from intnacl.data.images import SUFFIXES, ImageSet, Item, LoadRequest, decode_all, is_image
from intnacl.data.index import Listing, Place, indexed
from intnacl.data.streamed import streamed_set
from intnacl.errors import InputError, printable

DEFAULT_SIZE = 32
READ = ", ".join(sorted(SUFFIXES))
TRAIN_ALONE = "`intnacl pretrain` and `intnacl embed` need only a train split."
SPLITS = {"train": ("train", "training"), "test": ("test", "testing", "val", "valid", "validation")}


def load_folder(request: LoadRequest) -> ImageSet:
    """Decode the split's images to squares of `size`, their centres, through the cache.

    Images that are streamed are indexed instead.
    """
    assert request.path is not None
    folder, classes = find_split(request.path, request.split)
    if request.room <= 0:
        return _streamed(request, folder, classes)
    files = find_images(folder, classes)
    if request.streams(len(files), request.size or DEFAULT_SIZE):
        return _streamed(request, folder, classes)
    items = [Item(path.relative_to(folder).as_posix(), path, label) for path, label in files]
    size = request.size or DEFAULT_SIZE
    source = Source(
        name="folder",
        origin=folder,
        split=request.split,
        size=size,
        files=[path for path, _ in files],
        classes=classes,
        names=[item.name for item in items],
    )
    found = cached(request.root, source, lambda out: decode_all(items, len(items), out, size=size))
    return replace(found, names=tuple(item.name for item in items if item.name not in found.skipped))


def _streamed(request: LoadRequest, folder: Path, classes: tuple[str, ...]) -> ImageSet:
    """Return the split's images without decoding them.

    The modification times of a split's folders show if images were added, removed or renamed since they were
    indexed; an image that was overwritten is detected when it is read.
    """

    def listing(_: Path) -> Listing:
        files = find_images(folder, classes)
        folders = sorted({folder, *(parent for path, _ in files for parent in _parents(path, folder))})
        places = (
            Place(path.relative_to(folder).as_posix(), 0, 0, path.stat().st_size, label)
            for path, label in files
        )
        return Listing(places=places, total=len(files), root=folder.absolute(), sources=folders)

    index = indexed(request.root, "folder", folder, request.split, listing)
    return streamed_set(index, request.size or DEFAULT_SIZE, classes)


def _parents(path: Path, folder: Path) -> Iterator[Path]:
    while (path := path.parent) != folder:
        yield path


def find_split(path: Path, split: str) -> tuple[Path, tuple[str, ...]]:
    """Return the folder of the split, and the classes: those of the training folder where it has any."""
    if not path.is_dir():
        raise InputError(f"{path.absolute()} is not a folder.")
    names = {sub.name.lower(): sub for sub in subfolders(path)}
    train, test = (set(names).intersection(SPLITS[s]) for s in ("train", "test"))
    # A folder called train may also be one class among others.
    if not (names and ((train and test) or names.keys() <= train | test)):
        if split != "train":
            places = f"its images into {path / 'train'} and {path / 'test'}"
            raise InputError(f"{path} has no test split: put {places}. {TRAIN_ALONE}")
        return path, _class_names(path)
    found = {s: names[n] for s, choices in SPLITS.items() for n in reversed(choices) if n in names}
    for sub in found.values():
        _check_link(sub, path)
    if split not in found:
        rest = f" {TRAIN_ALONE}" if split == "test" else ""
        raise InputError(f"{path} has no {split} split: put images into {path / split}.{rest}")
    classes = [_class_names(found[s]) for s in ("train", "test") if s in found]
    return found[split], next((some for some in classes if some), ())


def _check_link(sub: Path, folder: Path) -> None:
    """Raise if a sub-folder links to a folder that contains it, which may hold a whole disk."""
    if folder.resolve().is_relative_to(sub.resolve()):
        raise InputError(
            f"the folder {sub} links to {sub.resolve()}, which holds the data set itself: remove the link."
        )


def subfolders(path: Path) -> list[Path]:
    """Return the visible sub-folders in the order of their names."""
    return sorted(sub for sub in path.iterdir() if sub.is_dir() and not sub.name.startswith("."))


def _class_names(path: Path) -> tuple[str, ...]:
    return tuple(printable(sub.name) for sub in subfolders(path))


def find_images(folder: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    """Return each image with its label, which is -1 if the folder is flat.

    Class folders are searched to any depth, except for hidden folders, such as `.ipynb_checkpoints` with its
    copies.
    """
    flat = sorted(path for path in folder.iterdir() if is_image(path) and path.is_file())
    labelled = subfolders(folder)
    if flat and labelled:
        raise InputError(
            f"{folder} mixes images ({flat[0].name}, …) and folders ({labelled[0].name}, …): give each class "
            "its own folder or, for images without labels, move all of them into one."
        )
    if not flat and not labelled:
        raise InputError(
            f"{folder} holds no images ({READ}) and no class folders: put some in, or give another folder."
        )
    found = [(path, -1) for path in flat]
    for sub in labelled:
        name = printable(sub.name)
        if name not in classes:
            raise InputError(f"{sub} is not a class of the training folder, which has {', '.join(classes)}.")
        _check_link(sub, folder)
        below = ((path, path.relative_to(sub).parts[:-1]) for path in sub.rglob("*"))
        visible = (path for path, parents in below if not any(part.startswith(".") for part in parents))
        paths = sorted(path for path in visible if is_image(path) and path.is_file())
        if not paths:
            raise InputError(f"the class folder {sub} holds no image ({READ}): put some in, or remove it.")
        found += [(path, classes.index(name)) for path in paths]
    return found
