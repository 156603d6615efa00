"""Runs that train beside others on one device are slowed down: they are marked, and give no minutes."""

from pathlib import Path

import torch

from intnacl.runs.folder import RunFolder


def device_name(device: str) -> str:
    """The same for every worker of a host on one device: a GPU by its own number, however they call it."""
    named = torch.device(device)
    if named.type != "cuda" or (named.index or 0) >= torch.cuda.device_count():  # the run will say so
        return device
    return str(torch.cuda.get_device_properties(named).uuid)


def mark_shared(results: Path, folder: RunFolder) -> None:
    """Mark a run whose lock was just taken, and every other that is done on its device now, if one is.

    Both workers of two that begin at the same time hold their locks before either looks. A run that is
    trained already, and is only measured now, keeps its minutes.
    """
    mine = _place(folder)
    runs = map(RunFolder, (results / "runs").iterdir())
    others = [run for run in runs if run.path != folder.path and _place(run) == mine]
    for run in [folder, *others] if mine and others else []:
        if not run.encoder.exists():
            run.mark_shared()


def inherit_mark(parent: RunFolder, folder: RunFolder) -> None:
    """The time of a run that goes on from another has that one's in it."""
    if parent.shared.exists():
        folder.mark_shared()


def _place(folder: RunFolder) -> tuple[str, str] | None:
    """Host and device of a run that is being done; None for another."""
    who = folder.holder()
    return (who["host"], who["device"]) if who and "host" in who and "device" in who else None
