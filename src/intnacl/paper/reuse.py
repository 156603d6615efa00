"""What a run takes over from others of its results folder, instead of training once more."""

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from filecmp import cmp
from glob import escape
from pathlib import Path

from intnacl.errors import InputError
from intnacl.files import new_folder
from intnacl.paper.run_names import encoder_key
from intnacl.paper.sharing import inherit_mark
from intnacl.runs.config import RunConfig
from intnacl.runs.folder import RunFolder
from intnacl.training.checkpoint import saved


def take_training(config: RunConfig, folder: RunFolder) -> None:
    """Give a run that has nothing yet what others have that train alike: an encoder and all that is measured
    on it, or else the last state of one that was stopped."""
    if folder.encoder.exists() or saved(folder.checkpoints):
        return
    readable = folder.path.name.rpartition("-")[0]  # of the names of all
    beside = sorted(path for path in folder.path.parent.glob(f"{escape(readable)}-*") if path != folder.path)
    configs = {other: found for other in map(RunFolder, beside) if (found := _config(other)) is not None}
    alike = [other for other, found in configs.items() if encoder_key(found) == encoder_key(config)]
    trained = {other: configs[other] for other in alike if other.encoder.exists()}
    if trained:
        folder.begin(config)
        _take_encoder(trained, config, folder)
    for other in alike:
        inherit(other, folder)


def _take_encoder(trained: Mapping[RunFolder, RunConfig], config: RunConfig, folder: RunFolder) -> None:
    """Of several runs, that on which most is measured; the encoder last, as with it a run is trained."""
    first = max(trained, key=lambda other: len(list(other.measurements.glob("*.json"))))
    print(f"takes the encoder of {first.path.name}, which was trained alike")
    for other in trained:
        if trained[other].probe == config.probe and cmp(other.encoder, first.encoder, shallow=False):
            for file in other.measured_files():
                _link(file, folder.path / file.relative_to(other.path))
    inherit_mark(first, folder)
    for file in (first.log, first.curves, first.encoder):
        if file.exists():
            _link(file, folder.path / file.name)


def inherit(other: RunFolder, folder: RunFolder) -> None:
    """Give a run that has no state of its own the last one of another, and the log so far; one that is being
    trained is left alone, as it removes its states."""
    states = saved(other.checkpoints) if other.result.exists() or other.holder() is None else []
    if not states or saved(folder.checkpoints) or folder.encoder.exists():
        return
    folder.checkpoints.mkdir(parents=True, exist_ok=True)
    inherit_mark(other, folder)
    if other.log.exists():
        shutil.copyfile(other.log, folder.log)
    with new_folder(folder.checkpoints / states[-1].name) as partial:
        for file in states[-1].iterdir():
            _link(file, partial / file.name)


def _config(folder: RunFolder) -> RunConfig | None:
    with suppress(InputError):  # none there, or damaged: nothing tells how that encoder came about
        return folder.read_config()
    return None


def _link(source: Path, target: Path) -> None:
    """Give a file that is never written to again a second name, or a copy on systems that cannot."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system, or none that links
        shutil.copyfile(source, target)
