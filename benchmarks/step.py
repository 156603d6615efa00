"""A SimCLR step at CIFAR's image size: ours against that of published scripts, on the same machine.

    python benchmarks/step.py --device cuda --workers 4 16
    python benchmarks/step.py --steps 2 --batch 32          # on a CPU, to try the script

Published scripts use torchvision on PIL images in the workers of a DataLoader, torchvision's ResNet-18 with
CIFAR's stem, two forward passes, the loss with its full matrix, and Adam, all eager, in float32 (torch's
defaults) or under bfloat16 autocast in channels_last. Ours is the row of `intnacl bench` with the same loss
and the same batch norm.
"""

import argparse
from collections.abc import Iterator

import torch
from augment import PerImage
from loss import plain
from torch import Tensor, nn
from torch.utils.data import DataLoader

from intnacl.runs import bench
from intnacl.runs.resolve import resolve


class Pairs(PerImage):
    """Two views of one image."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return super().__getitem__(index), super().__getitem__(index)


def batches(workers: int, batch: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Return an iterator of batches of view pairs: those that are timed, and those of the warm-up."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(
        0, 256, (batch * (warm_up(workers) + bench.WARM_UP + steps), 3, 32, 32), generator=generator
    )
    data = Pairs(images.to(torch.uint8), resolve(recipe="paper").augment)
    return iter(DataLoader(data, batch, num_workers=workers, pin_memory=torch.cuda.is_available()))


def warm_up(workers: int) -> int:
    """Return the number of untimed batches: the workers' start, and the batches that they prefetched."""
    return 2 * workers


def resnet18() -> nn.Module:
    """Return torchvision's ResNet-18 with CIFAR's stem and a head of two layers."""
    from torchvision.models import resnet18

    model = resnet18()
    model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    model.fc = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 128))
    return model


def published_step(device: torch.device, workers: int, batch: int, steps: int, *, half: bool) -> float:
    """Return the milliseconds per step of a published script."""
    layout = torch.channels_last if half else torch.contiguous_format
    model = resnet18().to(device, memory_format=layout)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    criterion, made = plain("g0"), batches(workers, batch, steps)

    def step() -> None:
        x0, x1 = (x.to(device, non_blocking=True, memory_format=layout) for x in next(made))
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            z0, z1 = model(x0), model(x1)
        criterion(z0.float(), z1.float()).backward()
        optimizer.step()

    for _ in range(warm_up(workers)):
        step()
    return bench.time_calls(lambda _: step(), device, steps)


def show(name: str, milliseconds: float, ours: float) -> None:
    minutes = milliseconds * bench.EPOCHS_100 / 60_000
    print(f"{name:48} {milliseconds:8.2f} ms {minutes:8.2f} min {milliseconds / ours:7.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--workers", nargs="+", type=int, default=[2])
    parser.add_argument("--batch", type=int, default=256, help="pairs per step of the published scripts")
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    row = "SimCLR, per-view BN"
    ours = bench.measure(row, args.device, steps=args.steps)
    print(f"{bench.hardware(args.device)}\n{'':48} {'per step':>11} {'100 epochs':>12} {'ratio':>7}")
    show(f"intnacl, {ours['precision']}, {ours['way']}", ours["ms"], ours["ms"])
    for workers in args.workers:
        for half in (False, True):
            name = f"published, {workers} workers, {'bf16, channels_last' if half else 'float32'}"
            show(name, published_step(args.device, workers, args.batch, args.steps, half=half), ours["ms"])


if __name__ == "__main__":
    main()
