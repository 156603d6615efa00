"""Runs that train beside others on one device are slowed down: they are marked, and give no minutes."""

from pathlib import Path

import torch

from intnacl.files import write_file
from intnacl.models.weights import ENCODER
from intnacl.paper.lock import holder
from intnacl.runs.surroundings import SHARED

WHY = b"Other runs used the device while this one trained, so its times are not the device's.\n"


def device_name(device: str) -> str:
    """The same for every worker of a host on one device: a GPU by its own number, however they call it."""
    named = torch.device(device)
    if named.type != "cuda" or (named.index or 0) >= torch.cuda.device_count():  # the run will say so
        return device
    return str(torch.cuda.get_device_properties(named).uuid)


def mark_shared(results: Path, folder: Path) -> None:
    """Mark a run whose lock was just taken, and every other that is done on its device now, if one is.

    Both workers of two that begin at the same time hold their locks before either looks. A run that is
    trained already, and is only measured now, keeps its minutes.
    """
    mine = _place(folder)
    others = [run for run in (results / "runs").iterdir() if run != folder and _place(run) == mine]
    for run in [folder, *others] if mine and others else []:
        if not (run / ENCODER).exists():
            write_file(run / SHARED, WHY)


def inherit_mark(parent: Path, folder: Path) -> None:
    """The time of a run that goes on from another has that one's in it."""
    if (parent / SHARED).exists():
        write_file(folder / SHARED, WHY)


def _place(folder: Path) -> tuple[str, str] | None:
    """Host and device of a run that is being done; None for another."""
    who = holder(folder)
    return (who["host"], who["device"]) if who and {"host", "device"} <= who.keys() else None
