"""Random crops of JPEGs per second and core: ours against torchvision's ImageFolder and v2 transforms.

    python benchmarks/stream.py                       # two workers, 500×375 photographs to 224-pixel views
    python benchmarks/stream.py --folder PICTURES     # a folder of class folders instead
    python benchmarks/stream.py --decoders            # single decoders and resizers, one thread
    python benchmarks/stream.py --gpu --dataset webdataset:SHARDS   # share of a ResNet-50 step spent waiting

All rows of one run see the same files. The rows run in short bursts, in turns, and the best burst of each
counts. Every file is decoded once for both views; torchvision's rows use a DataLoader with two persistent
workers. In the first, images stay PIL images, as ImageFolder gives them; in the second they become tensors
before the crops. Without a folder, the files are parts of the two photographs that ship with scikit-learn.
`--gpu` times the recipe `imagenet` with batches from the workers, and with one batch repeated: the difference
is the time spent waiting.
"""

import argparse
import io
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader

from intnacl.data import load
from intnacl.data.augmentations import AugmentConfig
from intnacl.data.batches import batch_indices
from intnacl.data.images import decoder_version
from intnacl.training.source import Streamed
from intnacl.training.workers import Crops, Planned

CONFIG = AugmentConfig(flip_p=0.0, jitter_p=0.0, grayscale_p=0.0)
BATCH = 32
Burst = Callable[[], float]  # makes batches for a while and returns images per second


def write_photographs(folder: Path, count: int = 200) -> None:
    """Write different parts of two photographs as 500×375 JPEGs of quality 90, in ten class folders."""
    from sklearn.datasets import load_sample_images

    photographs = list(map(Image.fromarray, load_sample_images().images))
    draw = np.random.default_rng(0)
    for number in range(count):
        width = int(draw.integers(300, 570))
        height = width * 3 // 4
        left, top = int(draw.integers(0, 641 - width)), int(draw.integers(0, 428 - height))
        part = photographs[number % 2].crop((left, top, left + width, top + height)).resize((500, 375))
        path = folder / f"class{number % 10}" / f"{number:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        part.save(path, quality=90)


class TwoViews:
    """Both views of one decoded image, stacked."""

    def __init__(self, first: nn.Module, crop: nn.Module) -> None:
        self.first, self.crop = first, crop

    def __call__(self, image: Image.Image) -> Tensor:
        image = self.first(image)
        return torch.stack([self.crop(image), self.crop(image)])


def torchvision_rows(folder: Path, size: int, workers: int, seconds: float) -> dict[str, Burst]:
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    crop = v2.RandomResizedCrop(size, CONFIG.crop_scale, CONFIG.crop_ratio, antialias=True)
    methods = {
        "torchvision v2 on PIL images": TwoViews(nn.Identity(), v2.Compose([crop, v2.PILToTensor()])),
        "torchvision v2 on tensors": TwoViews(v2.PILToTensor(), crop),
    }

    def burst(transform: TwoViews) -> Burst:
        loader = DataLoader(
            ImageFolder(str(folder), transform),
            BATCH,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            persistent_workers=True,
            prefetch_factor=4,
        )

        def run() -> float:
            for _ in loader:  # starts the workers, and brings the files into memory
                pass
            images, begun = 0, time.perf_counter()
            while time.perf_counter() - begun < seconds:
                for views, _ in loader:
                    images += len(views)
            return images / (time.perf_counter() - begun)

        return run

    return {name: burst(transform) for name, transform in methods.items()}


def our_row(folder: Path, root: Path, size: int, workers: int, seconds: float) -> Burst:
    images = load(f"folder:{folder}", size=size, root=root, room=0).images
    batch = min(BATCH, len(images))

    def run() -> float:
        source = Streamed(
            images,
            torch.arange(batch),
            crops=Crops(CONFIG, 2, 0),
            accumulate=1,
            workers=workers,
            device=torch.device("cpu"),
        )
        plan = (Planned(step, batch_indices(0, step, len(images), batch)) for step in range(10**6))
        with source.opened(plan):
            for _ in range(len(images) // batch):
                source.fill()
            made, begun = 0, time.perf_counter()
            while time.perf_counter() - begun < seconds:
                source.fill()
                made += batch
            return made / (time.perf_counter() - begun)

    return run


def time_decoders(folder: Path, size: int) -> None:
    """Print the milliseconds of each method to decode a file, and of each method to crop it once."""
    from torch.nn.functional import interpolate
    from torchvision.io import decode_jpeg

    torch.set_num_threads(1)
    data = [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))]
    image = Image.open(io.BytesIO(data[0])).convert("RGB")
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    box = (50, 40, 350, 340)
    methods: dict[str, Callable[[bytes], object]] = {
        "decode, Pillow": lambda one: np.array(Image.open(io.BytesIO(one)).convert("RGB")),
        "decode, torchvision": lambda one: decode_jpeg(torch.frombuffer(bytearray(one), dtype=torch.uint8)),
        "crop, Pillow": lambda _: image.resize((size, size), Image.Resampling.BILINEAR, box=box),
        "crop, torch": lambda _: interpolate(
            pixels[..., box[1] : box[3], box[0] : box[2]], (size, size), mode="bilinear", antialias=True
        ),
    }
    for name, method in methods.items():
        best = float("inf")
        for _ in range(5):
            begun = time.perf_counter()
            for one in data:
                method(one)
            best = min(best, (time.perf_counter() - begun) / len(data))
        print(f"{name:22} {1000 * best:.3f} ms")


def time_waits(dataset: str, root: Path | None, batch: int, workers: int | None, steps: int) -> None:
    """Print the milliseconds of the recipe's step with batches from workers, and with a repeated batch."""
    from intnacl.runs.bench import time_calls
    from intnacl.runs.objective import build_objective
    from intnacl.runs.resolve import resolve
    from intnacl.training.ranks import Ranks
    from intnacl.training.step import TrainStep

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    changes = {"dataset": dataset, "train.batch_size": batch, "train.workers": workers, "encoder.sync": False}
    config, here = resolve(changes, recipe="imagenet", device=device), Ranks(0, 1, device)
    data = load(dataset, size=config.size, root=root, room=0)
    train_step = TrainStep(build_objective(config, data, here), data.images, data.labels, config.train, here)
    train_step.prepare(print)
    index_1B = torch.zeros(1, batch, dtype=torch.int64, device=device)
    repeated = time_calls(lambda step: train_step(index_1B, step), device, steps)
    rows = torch.arange(len(data))
    plan = (Planned(step, rows.roll(-step * batch)[:batch]) for step in range(10**6))
    with train_step.source.opened(plan):
        streamed = time_calls(lambda step: train_step(index_1B, step), device, steps, warm_up=20)
    share = f"{100 * (1 - repeated / streamed):.1f} % waiting"
    print(f"{device}, {batch} images: {streamed:.1f} ms streamed, {repeated:.1f} ms without data: {share}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--decoders", action="store_true")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--dataset")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=30)
    given = parser.parse_args()
    versions = f"torch {torch.__version__}, {decoder_version()}"
    print(f"{platform.machine()}, {os.cpu_count()} cores, {versions}")
    if given.gpu:
        time_waits(given.dataset, given.root, given.batch_size, None, given.steps)
        return
    with tempfile.TemporaryDirectory() as place:
        folder = given.folder or Path(place) / "photographs"
        if given.folder is None:
            write_photographs(folder)
        if given.decoders:
            time_decoders(folder, given.size)
            return
        rows = torchvision_rows(folder, given.size, given.workers, given.seconds)
        rows["intnacl"] = our_row(folder, Path(place), given.size, given.workers, given.seconds)
        best = dict.fromkeys(rows, 0.0)
        for _ in range(given.rounds):
            for name, burst in rows.items():
                best[name] = max(best[name], burst())
    for name, speed in best.items():
        ratio = speed / best["torchvision v2 on PIL images"]
        print(f"{name:30} {speed / given.workers:7.0f} images/s per worker, {ratio:.2f} of the first row's")


if __name__ == "__main__":
    main()
