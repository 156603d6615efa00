"""A timm model as the backbone: `python examples/timm_backbone.py [--model resnet18] [--epochs 5]`.

If you need no loop of your own, `intnacl run --set encoder.name=timm:resnet18` trains, probes and attacks it.
"""

import argparse

import timm
import torch
from timm.data import resolve_model_data_config
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from torch import nn
from torchvision.transforms.functional import normalize

from intnacl import IntNaClLoss
from intnacl.data import load
from intnacl.data.augmentations import AugmentConfig
from intnacl.data.views import make_views


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--size", type=int, default=32)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    backbone = timm.create_model(args.model, num_classes=0)  # pretrained=True downloads weights
    head = nn.Sequential(nn.LazyLinear(256), nn.ReLU(), nn.Linear(256, 64))
    model = nn.Sequential(backbone, head).to(device)
    model(torch.zeros(2, 3, args.size, args.size, device=device))  # initialises the lazy layer of the head
    given = resolve_model_data_config(backbone)
    images = load("digits", "train").images.to(device)
    images = nn.functional.interpolate(images / 255, args.size)  # your images, in [0, 1]
    gentle = AugmentConfig(crop_scale=(0.3, 1.0), flip_p=0.0, strength=0.5)  # a mirrored 2 is not a digit
    criterion = IntNaClLoss.preset("debiased_hardneg")
    optimizer = create_optimizer_v2(model, opt="lamb", lr=5e-3, weight_decay=1e-4)
    scheduler = CosineLRScheduler(optimizer, t_initial=args.epochs, warmup_t=1, warmup_lr_init=1e-3)
    for epoch in range(args.epochs):
        scheduler.step(epoch)
        losses = []
        for rows in torch.randperm(len(images), device=device).split(256)[:-1]:
            views = make_views(images[rows], gentle, seed=0, step=epoch, rows=rows).plain
            z0, z1 = (model(normalize(x, given["mean"], given["std"])) for x in views)
            loss = criterion(z0, z1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}, loss {sum(losses) / len(losses):.4f}", flush=True)


if __name__ == "__main__":
    main()
