"""Test that a whole recipe draws from torchvision's distribution, on real images, over several runs of each.

    python benchmarks/augment_faithful.py --root DIR                  # 20,000 CIFAR-100 images

Each run augments every image once. For each statistic the table gives the distance between two torchvision
runs, between two of ours, and between one of ours and one of torchvision's, as mean and maximum over all
pairs of runs. If the third distance is no larger than the first, the statistic cannot tell the two apart.
"""

import argparse
from collections.abc import Iterable
from itertools import combinations, product

import torch
from torch import Tensor

from intnacl.data import load
from intnacl.data.augment import augment
from intnacl.data.augmentations import AUGMENTATIONS, AugmentConfig

Summary = dict[str, Tensor]


def torchvision_run(images: Tensor, config: AugmentConfig, seed: int, pil: bool) -> Tensor:
    """Pass every image once through torchvision, one by one, as float tensors or as PIL images."""
    from torchvision.transforms import v2

    steps = [
        v2.RandomResizedCrop(tuple(images.shape[2:]), config.crop_scale, config.crop_ratio, antialias=True),
        v2.RandomHorizontalFlip(config.flip_p),
        v2.RandomApply([v2.ColorJitter(*config.factors)], config.jitter_p),
        v2.RandomGrayscale(config.grayscale_p),
    ]
    if config.blur_p > 0:
        steps.append(v2.RandomApply([v2.GaussianBlur(config.blur_kernel, config.blur_sigma)], config.blur_p))
    unit = v2.ToDtype(torch.float32, scale=True)
    transform = v2.Compose([v2.ToPILImage(), *steps, v2.ToImage(), unit] if pil else [unit, *steps])
    torch.manual_seed(seed)
    return torch.stack([torch.as_tensor(transform(image)) for image in images])


def our_run(images: Tensor, config: AugmentConfig, seed: int) -> Tensor:
    parts = torch.arange(len(images)).split(1000)
    return torch.cat([augment(images[rows], config, seed=seed, step=0, view=0, rows=rows) for rows in parts])


def summary(views: Tensor) -> Summary:
    """Return mean, variance and histogram of each channel's pixels, and the images' means and contrasts."""
    pixels = views.transpose(0, 1).flatten(1)
    # torchvision's blur leaves some whites at 1 + 1e-7, which histc would not count.
    bins = torch.stack([torch.histc(channel.clamp(0, 1), 64, 0, 1) / channel.numel() for channel in pixels])
    means, deviations = views.mean((2, 3)), views.std((2, 3))
    return {
        "channel mean": pixels.mean(1),
        "channel variance": pixels.var(1),
        "variance of the images' means": means.var(0),
        "mean of the images' deviations": deviations.mean(0),
        "histogram, total variation": bins,
    }


def distance(a: Tensor, b: Tensor) -> float:
    """Return the largest difference over the channels; for histograms the mean total variation."""
    return float((a - b).abs().sum(1).mean() / 2) if a.dim() == 2 else float((a - b).abs().max())


def column(pairs: Iterable[tuple[Summary, Summary]], name: str) -> str:
    values = [distance(a[name], b[name]) for a, b in pairs]
    return f"{sum(values) / len(values):9.2e} {max(values):9.2e}" if values else f"{'-':>9s} {'-':>9s}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="cifar100")
    parser.add_argument("--root", default="data")
    parser.add_argument("--recipe", default="paper", choices=["paper", "simclr"])
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--pil", action="store_true", help="torchvision on PIL images: 8 bits throughout")
    args = parser.parse_args()

    images = load(args.dataset, split="train", root=args.root).images[: args.images]
    config = AUGMENTATIONS[args.recipe]
    theirs = [summary(torchvision_run(images, config, seed, args.pil)) for seed in range(args.runs)]
    ours = [summary(our_run(images, config, seed)) for seed in range(args.runs)]
    print(f"{len(images)} images of {args.dataset}, recipe {args.recipe}, {args.runs} runs; mean, maximum")
    print(f"{'':34s} {'torchvision twice':>19s}  {'ours twice':>19s}  {'ours - torchvision':>19s}")
    for name in theirs[0]:
        pairs = (combinations(theirs, 2), combinations(ours, 2), product(ours, theirs))
        print(f"{name:34s} " + "  ".join(column(pair, name) for pair in pairs))


if __name__ == "__main__":
    main()
