"""One rank of two for the tests: trains in float64 and leaves its weights behind.

python two_ranks.py RANK WORLD FOLDER PRESET NORM SYNC
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from pieces import contrastive, run, state, trainer

from intnacl.training.distributed import Ranks

STEPS = 20  # five epochs of four updates


def main(rank: int, world: int, folder: Path, preset: str, norm: str, sync: bool) -> None:
    torch.set_num_threads(1)
    if world > 1:
        place = f"file://{folder}/rendezvous"
        dist.init_process_group("gloo", init_method=place, rank=rank, world_size=world)
    objective = contrastive(preset, world=world, dtype=torch.float64, norm=norm, sync=sync)
    here = Ranks(rank, world, torch.device("cpu"))
    made = trainer(folder / "run", objective, here=here, precision="fp64", epochs=STEPS // 4)
    assert run(made) is None
    torch.save(state(made), folder / f"rank{rank}.pt")
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    number, of, where, name, kind, synced = sys.argv[1:]
    main(int(number), int(of), Path(where), name, kind, synced == "sync")
    sys.stdout.flush()
    os._exit(0)  # as the command does: threads of the group may outlive the interpreter
