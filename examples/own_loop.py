"""The loss in a loop of your own: learn digits without their labels, in plain PyTorch on a CPU.

    python examples/own_loop.py [--preset intnacl] [--epochs 15]

Before and after training, the script prints the 1-nearest-neighbour accuracy on the test digits, with 100
labelled training images and with all.
"""

import argparse

import torch
from torch import nn

from intnacl import IntNaClLoss
from intnacl.attacks import adversarial_view
from intnacl.data import load
from intnacl.data.augmentations import AugmentConfig
from intnacl.data.views import make_views
from intnacl.evaluation.knn import KnnConfig, evaluate
from intnacl.models.batchnorm import convert, stacked

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--preset", default="intnacl", help="simclr, debiased, hardneg, …, intcl, intnacl")
parser.add_argument("--epochs", type=int, default=15)
args = parser.parse_args()

torch.manual_seed(0)
train, test = load("digits", "train"), load("digits", "test")
encoder = nn.Sequential(
    *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
    *(nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
    *(nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU()),
    *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
)
model = nn.Sequential(encoder, nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64))
convert(model)  # gives adversarial views their own batch norms
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
# ŵ divided by its mean, as in `intnacl run`: with the preset's own weight, ŵ, mixed views hardly count.
weight = {"weight": "relative"} if args.preset == "intnacl" else {}
loss = IntNaClLoss.preset(args.preset, **weight)
_, extra, mixed, adversarial = loss.views_needed
further = {"extra": extra, "mixed": mixed, "lam": loss.config.lam}
digits = AugmentConfig(crop_scale=(0.3, 1.0), flip_p=0.0, strength=0.5)  # a mirrored 2 is not a digit


def report(when: str) -> None:
    for labelled in (100, len(train)):
        known = train.images[:labelled], train.labels[:labelled]
        accuracy = evaluate(encoder, known, (test.images, test.labels), KnnConfig(k=1))["accuracy"]
        print(f"{when:<6} 1-NN accuracy with {labelled:>4} labels: {accuracy:.1f} %", flush=True)


report("before")
for epoch in range(args.epochs):
    for step, rows in enumerate(torch.randperm(len(train)).split(128), start=epoch * len(train)):
        x = make_views(train.images[rows], digits, seed=0, step=step, rows=rows, **further)
        z0, z1 = map(model, x.plain)
        others = {"extra": [model(view) for view in x.extra], "mixed": [model(view) for view in x.mixed]}
        if adversarial:
            with stacked(model, [(1, True)]):  # one adversarial view, for its own batch norms
                others["adversarial"] = model(adversarial_view(model, x.plain[0], eps=0.015))
        optimizer.zero_grad()
        loss(z0, z1, **others).backward()
        optimizer.step()
report("after")
