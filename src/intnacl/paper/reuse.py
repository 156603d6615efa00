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
from intnacl.models.weights import ENCODER
from intnacl.paper.lock import holder
from intnacl.paper.run_names import encoder_key
from intnacl.paper.sharing import inherit_mark
from intnacl.runs.config import RunConfig
from intnacl.runs.measurements import PARTS
from intnacl.runs.pretrain import CURVES, RESULT, open_folder, read_config
from intnacl.training.checkpoint import CHECKPOINTS, saved
from intnacl.training.journal import LOG

MEASURED = (f"{PARTS}/*.json", "probe-*.safetensors")


def take_training(config: RunConfig, folder: Path) -> None:
    """Give a run that has nothing yet what others have that train alike: an encoder and all that is measured
    on it, or else the last state of one that was stopped."""
    if (folder / ENCODER).exists() or saved(folder / CHECKPOINTS):
        return
    readable = folder.name.rpartition("-")[0]  # of the names of all
    beside = sorted(path for path in folder.parent.glob(f"{escape(readable)}-*") if path != folder)
    configs = {path: found for path in beside if (found := _config(path)) is not None}
    alike = [path for path, found in configs.items() if encoder_key(found) == encoder_key(config)]
    trained = {path: configs[path] for path in alike if (path / ENCODER).exists()}
    if trained:
        open_folder(folder, config)
        _take_encoder(trained, config, folder)
    for path in alike:
        inherit(path, folder)


def _take_encoder(trained: Mapping[Path, RunConfig], config: RunConfig, folder: Path) -> None:
    """Of several runs, that on which most is measured; the encoder last, as with it a run is trained."""
    first = max(trained, key=lambda path: len(list(path.glob(MEASURED[0]))))
    print(f"takes the encoder of {first.name}, which was trained alike")
    same = [path for path in trained if cmp(path / ENCODER, first / ENCODER, shallow=False)]
    for path in same:
        for pattern in MEASURED if trained[path].probe == config.probe else ():
            _take(path, pattern, folder)
    inherit_mark(first, folder)
    for name in (LOG, CURVES, ENCODER):
        _take(first, name, folder)


def inherit(other: Path, folder: Path) -> None:
    """Give a run that has no state of its own the last one of another, and the log so far; one that is being
    trained is left alone, as it removes its states."""
    states = saved(other / CHECKPOINTS) if (other / RESULT).exists() or holder(other) is None else []
    place = folder / CHECKPOINTS
    if not states or saved(place) or (folder / ENCODER).exists():
        return
    place.mkdir(parents=True, exist_ok=True)
    inherit_mark(other, folder)
    if (other / LOG).exists():
        shutil.copyfile(other / LOG, folder / LOG)
    with new_folder(place / states[-1].name) as partial:
        for file in states[-1].iterdir():
            _link(file, partial / file.name)


def _take(other: Path, pattern: str, folder: Path) -> None:
    for file in other.glob(pattern):
        _link(file, folder / file.relative_to(other))


def _config(folder: Path) -> RunConfig | None:
    with suppress(InputError):  # none there, or damaged: nothing tells how that encoder came about
        return read_config(folder)
    return None


def _link(source: Path, target: Path) -> None:
    """Give a file that is never written to again a second name, or a copy on systems that cannot."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system, or none that links
        shutil.copyfile(source, target)
