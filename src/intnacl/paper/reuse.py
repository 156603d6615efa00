"""Taking over the work of other runs in the same results folder, instead of training once more."""

import os
import shutil
from contextlib import suppress
from filecmp import cmp
from glob import escape
from pathlib import Path

from intnacl.errors import InputError
from intnacl.files import make_folder, new_folder
from intnacl.paper.run_names import encoder_key
from intnacl.runs.config import RunConfig
from intnacl.runs.folder import RunFolder
from intnacl.training.checkpoint import saved


def take_training(config: RunConfig, folder: RunFolder) -> None:
    """Give a run that has nothing yet the work of others that train alike.

    This is an encoder, of several that on which most is measured, and all that is measured on it; or else the
    last state of a run that was stopped.
    """
    if folder.encoder.exists() or saved(folder.checkpoints):
        return
    alike: dict[RunFolder, RunConfig] = {}
    readable = folder.path.name.rpartition("-")[0]  # of the names of all
    for path in sorted(folder.path.parent.glob(f"{escape(readable)}-*")):
        with suppress(InputError):  # without a configuration, nothing tells how an encoder came about
            other = RunFolder(path)
            found = other.read_config()
            if path != folder.path and encoder_key(found) == encoder_key(config):
                alike[other] = found
    trained = [other for other in alike if other.encoder.exists()]
    if trained:
        folder.begin(config)
        first = max(trained, key=lambda other: len(list(other.measurements.glob("*.json"))))
        print(f"takes the encoder of {first.path.name}, which was trained alike")
        for other in trained:
            if alike[other].probe == config.probe and cmp(other.encoder, first.encoder, shallow=False):
                for file in other.measured_files():
                    _link(file, folder.path / file.relative_to(other.path))
        _copy_mark(first, folder)
        for file in first.trained_files():
            _link(file, folder.path / file.name)
    for other in alike:
        inherit(other, folder)


def inherit(other: RunFolder, folder: RunFolder) -> None:
    """Give a run that has no state of its own the last one of another, and the log so far.

    A run in training is left alone, as it removes its states.
    """
    states = saved(other.checkpoints) if other.result.exists() or other.holder() is None else []
    if not states or saved(folder.checkpoints) or folder.encoder.exists():
        return
    make_folder(folder.checkpoints)
    _copy_mark(other, folder)
    if other.log.exists():
        shutil.copyfile(other.log, folder.log)
    with new_folder(folder.checkpoints / states[-1].name) as partial:
        for file in states[-1].iterdir():
            _link(file, partial / file.name)


def _copy_mark(other: RunFolder, folder: RunFolder) -> None:
    """Mark a run as shared if the other is, since its time has that one's in it."""
    if other.shared.exists():
        folder.mark_shared()


def _link(source: Path, target: Path) -> None:
    """Give a file that is never written to again a second name, or a copy on systems that cannot."""
    make_folder(target.parent)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system, or none that links
        shutil.copyfile(source, target)
