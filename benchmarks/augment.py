"""Augmented views per second: ours against torchvision per image, torchvision v2 per batch, and kornia.

    python benchmarks/augment.py                            # CPU, all cores
    python benchmarks/augment.py --device cuda --batch-sizes 512 4096 --dtype bfloat16

All rows of one run see the same images and recipe. The rows run in short bursts, in turns, and the best burst
of each counts, which keeps the ratios as independent as possible of other work on the machine. Published
contrastive code uses torchvision per image: PIL images in the workers of a DataLoader, one worker per core.
torchvision v2 per batch draws one set of parameters for the whole batch: it is a bound, not an alternative.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from intnacl.data.augment import augment
from intnacl.data.augmentations import AUGMENTATIONS, AugmentConfig

View = Callable[[], object]  # makes a batch of views
Burst = Callable[[], float]  # makes batches for a while and returns views per second


class PerImage(Dataset[Tensor]):
    """One view of one image by torchvision on PIL, as in a per-image data loader."""

    def __init__(self, images: Tensor, config: AugmentConfig) -> None:
        import torchvision.transforms as T

        size = tuple(images.shape[2:])
        steps = [
            T.RandomResizedCrop(size, config.crop_scale, config.crop_ratio),
            T.RandomHorizontalFlip(config.flip_p),
            T.RandomApply([T.ColorJitter(*config.factors)], config.jitter_p),
            T.RandomGrayscale(config.grayscale_p),
        ]
        if config.blur_p > 0:
            steps.append(
                T.RandomApply([T.GaussianBlur(config.blur_kernel, config.blur_sigma)], config.blur_p)
            )
        self.transform = T.Compose([*steps, T.ToTensor()])
        self.pixels = images.permute(0, 2, 3, 1).contiguous().numpy()

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> Tensor:
        from PIL import Image

        return self.transform(Image.fromarray(self.pixels[index]))


def torchvision_per_image(images: Tensor, config: AugmentConfig, workers: int) -> Burst:
    count = 64 * 16 * workers
    data = PerImage(images.cpu().repeat(-(-count // len(images)), 1, 1, 1)[:count], config)
    loader = DataLoader(data, batch_size=64, num_workers=workers)

    def burst() -> float:
        batches = iter(loader)
        for _ in range(4 * workers):  # skips the workers' start and the batches that they prefetched
            next(batches)
        start = time.perf_counter()
        return sum(len(views) for views in batches) / (time.perf_counter() - start)

    return burst


def torchvision_per_batch(images: Tensor, config: AugmentConfig) -> View:
    import torchvision.transforms.v2 as T

    steps = [
        T.ToDtype(torch.float32, scale=True),
        T.RandomResizedCrop(tuple(images.shape[2:]), config.crop_scale, config.crop_ratio, antialias=True),
        T.RandomHorizontalFlip(config.flip_p),
        T.RandomApply([T.ColorJitter(*config.factors)], config.jitter_p),
        T.RandomGrayscale(config.grayscale_p),
    ]
    if config.blur_p > 0:
        steps.append(T.RandomApply([T.GaussianBlur(config.blur_kernel, config.blur_sigma)], config.blur_p))
    transform = T.Compose(steps)
    return lambda: transform(images)


def kornia_per_batch(images: Tensor, config: AugmentConfig) -> View:
    import kornia.augmentation as K

    steps = [
        K.RandomResizedCrop(tuple(images.shape[2:]), config.crop_scale, config.crop_ratio),
        K.RandomHorizontalFlip(p=config.flip_p),
        K.ColorJitter(*config.factors, p=config.jitter_p),
        K.RandomGrayscale(p=config.grayscale_p),
    ]
    if config.blur_p > 0:
        steps.append(K.RandomGaussianBlur((config.blur_kernel,) * 2, config.blur_sigma, p=config.blur_p))
    transform = torch.nn.Sequential(*steps)
    return lambda: transform(images.float() / 255)


def ours(images: Tensor, config: AugmentConfig, dtype: torch.dtype, compiled: bool) -> View:
    rows = torch.arange(len(images), device=images.device)
    step = torch.zeros((), dtype=torch.int64, device=images.device)
    function = torch.compile(augment, fullgraph=True, dynamic=False) if compiled else augment

    def view() -> Tensor:
        step.add_(1)
        return function(images, config, seed=0, step=step, view=0, rows=rows, dtype=dtype)

    return view


def replayed(view: View) -> View:
    """Capture the same work as one CUDA graph, as in a captured training step."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            view()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        view()
    return graph.replay


def bursts_of(view: View, batch: int, device: str) -> Burst:
    """Return a burst of calls, after a warm-up that compiles."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    calls = 100 if device == "cuda" else 2
    for _ in range(3):
        view()
    wait()

    def burst() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            view()
        wait()
        return calls * batch / (time.perf_counter() - start)

    return burst


def contenders(
    images: Tensor, config: AugmentConfig, args: argparse.Namespace
) -> dict[str, Callable[[], Burst]]:
    dtype, batch = getattr(torch, args.dtype), len(images)

    def batched(make: Callable[[], View]) -> Callable[[], Burst]:
        return lambda: bursts_of(make(), batch, args.device)

    rows = {
        f"torchvision per image (PIL, {args.threads} workers)": lambda: torchvision_per_image(
            images, config, args.threads
        ),
        "torchvision v2 per batch (one draw each)": batched(lambda: torchvision_per_batch(images, config)),
        "kornia per batch": batched(lambda: kornia_per_batch(images, config)),
        f"intnacl, eager, {args.dtype}": batched(lambda: ours(images, config, dtype, compiled=False)),
        f"intnacl, compiled, {args.dtype}": batched(lambda: ours(images, config, dtype, compiled=True)),
    }
    if args.device == "cuda":
        rows[f"intnacl, compiled + CUDA graph, {args.dtype}"] = batched(
            lambda: replayed(ours(images, config, dtype, compiled=True))
        )
    return rows


def measure(rows: dict[str, Callable[[], Burst]], rounds: int) -> dict[str, list[float]]:
    bursts = {}
    for name, make in rows.items():
        try:
            bursts[name] = make()
        except ImportError as error:
            print(f"  {name}: {error.name} is not installed")
    rates: dict[str, list[float]] = {name: [] for name in bursts}
    for _ in range(rounds):
        for name, burst in bursts.items():
            rates[name].append(burst())
    return rates


def hardware(args: argparse.Namespace) -> str:
    place = torch.cuda.get_device_name() if args.device == "cuda" else f"{args.threads} threads"
    return f"{platform.machine()}, {os.cpu_count()} cores, {place}; Python {platform.python_version()}"


def versions() -> str:
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for package in ("torch", "torchvision", "pillow", "kornia"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} absent")
    return ", ".join(found)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[512])
    parser.add_argument("--size", type=int, default=32, help="side of the images")
    parser.add_argument("--recipe", default="paper", choices=["paper", "simclr"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="threads, and workers of the loader"
    )
    parser.add_argument("--rounds", type=int, default=5, help="bursts of each row")
    return parser.parse_args()


def main() -> None:
    args = parse()
    torch.set_num_threads(args.threads)
    config = AUGMENTATIONS[args.recipe]
    print(f"views per second, {args.size}x{args.size}, recipe {args.recipe}\n{hardware(args)}\n{versions()}")
    for batch in args.batch_sizes:
        images = torch.randint(
            0, 256, (batch, 3, args.size, args.size), dtype=torch.uint8, device=args.device
        )
        print(f"batch {batch}: best burst of {args.rounds} (median)", flush=True)
        rates = measure(contenders(images, config, args), args.rounds)
        base = max(next(iter(rates.values())))
        for name, values in rates.items():
            print(f"  {name:46s} {max(values):12,.0f} ({median(values):12,.0f}) {max(values) / base:8.1f}x")


if __name__ == "__main__":
    main()
