"""One rank of two for the tests: trains in float64 and leaves its weights and a count of exchanges behind.

python two_ranks.py RANK WORLD FOLDER PRESET NORM SYNC UPDATES; "long" updates have two batches each and an
adversary that takes two steps from a random start; "streamed" ones have images of the shards beside FOLDER,
and leave the rows, crops and names of images that the rank has decoded behind as well.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from pieces import contrastive, distill, run, state, trainer
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from intnacl.data import load
from intnacl.data.index import Index
from intnacl.training.objectives import AdversaryConfig
from intnacl.training.ranks import Ranks

STEPS = 20  # an epoch has four batches


def watched(read: Callable[[Index, int], bytes], decoded: list[str]) -> Callable[[Index, int], bytes]:
    """Wrap the method so that it records each image by name."""

    def noting(index: Index, row: int) -> bytes:
        decoded.append(index.names[row])
        return read(index, row)

    return noting


def main(rank: int, world: int, folder: Path, preset: str, norm: str, sync: bool, updates: str) -> None:
    torch.set_num_threads(1)
    if world > 1:
        place = f"file://{folder}/rendezvous"
        dist.init_process_group("gloo", init_method=place, rank=rank, world_size=world)
    batches = 2 if updates == "long" else 1
    adversary = AdversaryConfig(steps=batches, random_start=updates == "long")
    options = {"dtype": torch.float64, "adversary": adversary, "norm": norm, "sync": sync}
    here = Ranks(rank, world, torch.device("cpu"))
    if preset == "distill":
        del options["adversary"]
        objective = distill(perturbation=0.01, ramp_epochs=2, start="random", **options)
    else:
        objective = contrastive(preset, world=world, **options)
    settings = {"precision": "fp64", "epochs": STEPS * batches // 4, "accumulate": batches}
    decoded: list[str] = []
    crops: list[torch.Tensor] = []
    data = None
    if updates == "streamed":
        settings["workers"] = 0  # so that this process sees what is read
        found = load(f"webdataset:{folder.parent}", size=8, room=0, root=folder)
        data = found.images, found.labels
        Index.read = watched(Index.read, decoded)
    made = trainer(folder / "run", objective, here=here, data=data, **settings)
    assert made.steps == STEPS
    if updates == "streamed":
        read = made.train_step.source.read
        made.train_step.source.read = lambda *batch: (crops.append(read(*batch).clone()), crops[-1])[1]
    exchanges: list[int] = []
    if world > 1:

        def reduce(_: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            exchanges.append(bucket.index())
            return allreduce_hook(None, bucket)

        objective.parts.embed.register_comm_hook(None, reduce)
    assert run(made) is None
    torch.save(state(made) | {"exchanges": torch.tensor(exchanges.count(0))}, folder / f"rank{rank}.pt")
    torch.save({"rows": made.train_step.rows, "crops": crops, "decoded": decoded}, folder / f"seen{rank}.pt")
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    number, of, where, name, kind, synced, how = sys.argv[1:]
    main(int(number), int(of), Path(where), name, kind, synced == "sync", how)
    sys.stdout.flush()
    os._exit(0)  # as the command does: threads of the group may outlive the interpreter
