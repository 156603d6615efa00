"""Reuse of the work of other runs in the same results folder, instead of training again."""

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
    """Give a new run the work of other runs with the same training.

    It gets the encoder with the most measurements, and all measurements on it; or else the last state of a
    run that was stopped.
    """
    if folder.encoder.exists() or saved(folder.checkpoints):
        return
    alike: dict[RunFolder, RunConfig] = {}
    readable = folder.path.name.rpartition("-")[0]  # the part of the name before the hash
    for path in sorted(folder.path.parent.glob(f"{escape(readable)}-*")):
        with suppress(InputError):  # without a configuration, the origin of an encoder is unknown
            other = RunFolder(path)
            found = other.read_config()
            if path != folder.path and encoder_key(found) == encoder_key(config):
                alike[other] = found
    trained = [other for other in alike if other.encoder.exists()]
    if trained:
        folder.begin(config)
        first = max(trained, key=lambda other: len(list(other.measurements.glob("*.json"))))
        print(f"reuses the encoder of {first.path.name}, which was trained in the same way")
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
    """Give a run that has no state yet the last state of another run, and its log.

    The states of a run in training are not used, because it removes them.
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
    """Mark a run as shared if the other is, because its time includes that of the other."""
    if other.shared.exists():
        folder.mark_shared()


def _link(source: Path, target: Path) -> None:
    """Hard-link a file that is never modified again, or copy it if the file system has no links."""
    make_folder(target.parent)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)
