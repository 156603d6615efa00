"""Images from Hugging Face `datasets`: `python examples/huggingface_datasets.py FOLDER [--epochs 5]`.

FOLDER holds train/CLASS/IMAGE files. `load_dataset("uoft-cs/cifar10")` from the Hub works in the same way,
with image="img" below. `intnacl run` can also read such a folder itself (--dataset folder:FOLDER), and a
data set of the Hub after `dataset.to_parquet("DIR/train.parquet")` (--dataset parquet:DIR).
"""

import argparse

import torch
from datasets import load_dataset
from torch import nn
from torch.utils.data import DataLoader

from intnacl import IntNaClLoss
from intnacl.data.multiview import MultiViewDataset, MultiViewTransform

SIZE = 32


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(0)
    dataset = load_dataset("imagefolder", data_dir=args.folder, split="train")
    print(f"{len(dataset)} images, {len(dataset.features['label'].names)} classes")
    views = MultiViewDataset(dataset, MultiViewTransform("simclr", size=SIZE), image="image")
    loader = DataLoader(views, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 32)),
    )
    criterion, optimizer = IntNaClLoss.preset("simclr"), torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        views.set_epoch(epoch)
        losses = []
        for batch in loader:
            x0, x1 = batch["image"]
            optimizer.zero_grad()
            loss = criterion(model(x0), model(x1))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}, loss {sum(losses) / len(losses):.4f}", flush=True)


if __name__ == "__main__":
    main()
