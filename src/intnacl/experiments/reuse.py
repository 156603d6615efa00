"""A run that trains as another one did takes that one's encoder: they differ in what is measured alone."""

import os
import shutil
from contextlib import suppress
from glob import escape
from pathlib import Path

from intnacl.config import RunConfig
from intnacl.errors import InputError
from intnacl.experiments.naming import encoder_key
from intnacl.experiments.sharing import inherit_mark
from intnacl.measure.parts import PARTS
from intnacl.stages import CURVES, open_folder, read_config
from intnacl.training.checkpoint import CHECKPOINTS, saved
from intnacl.training.journal import LOG
from intnacl.weights import ENCODER

TRAINING = (LOG, CURVES)
MEASURED = (f"{PARTS}/*.json", "probe-*.safetensors")  # for the run's own probe


def take_encoder(config: RunConfig, folder: Path) -> None:
    """Give a run that has nothing yet the encoder of one beside it, and what is measured on it already."""
    if (folder / ENCODER).exists() or saved(folder / CHECKPOINTS):
        return
    readable = folder.name.rpartition("-")[0]  # of the names of both
    for other in sorted(folder.parent.glob(f"{escape(readable)}-*")):
        found = _config(other) if (other / ENCODER).exists() else None
        if found and encoder_key(found) == encoder_key(config):
            print(f"takes the encoder of {other.name}, which was trained alike")
            open_folder(folder, config)
            inherit_mark(other, folder)
            for pattern in (*TRAINING, *(MEASURED if found.probe == config.probe else ()), ENCODER):
                for file in other.glob(pattern):
                    link(file, folder / file.relative_to(other))
            return


def _config(folder: Path) -> RunConfig | None:
    with suppress(InputError):  # none there, or damaged: nothing tells how that encoder came about
        return read_config(folder)
    return None


def link(source: Path, target: Path) -> None:
    """Give a file that is never written to again a second name, or a copy on systems that cannot."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system, or none that links
        shutil.copyfile(source, target)
