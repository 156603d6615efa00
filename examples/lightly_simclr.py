"""Our loss in lightly's SimCLR, instead of NTXentLoss: `python examples/lightly_simclr.py [--epochs 5]`."""

import argparse

import torch
import torchvision
from lightly.models.modules import SimCLRProjectionHead
from lightly.transforms import SimCLRTransform
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.functional import to_pil_image

from intnacl import IntNaClLoss
from intnacl.data import load


class SimCLR(nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.projection_head = SimCLRProjectionHead(512, 512, 128)

    def forward(self, x):
        return self.projection_head(self.backbone(x).flatten(start_dim=1))


class Digits(Dataset):
    # Replace it by your data set, such as torchvision.datasets.CIFAR10(root, transform=transform).
    def __init__(self, transform):
        self.data, self.transform = load("digits", "train"), transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.transform(to_pil_image(self.data.images[index])), int(self.data.labels[index])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    epochs = parser.parse_args().epochs
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = SimCLR(nn.Sequential(*list(torchvision.models.resnet18().children())[:-1])).to(device)
    transform = SimCLRTransform(input_size=16, min_scale=0.4, hf_prob=0.0, gaussian_blur=0.0)  # for digits
    dataloader = DataLoader(Digits(transform), batch_size=256, shuffle=True, drop_last=True)
    criterion = IntNaClLoss.preset("debiased_hardneg")  # was: lightly.loss.NTXentLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        for (x0, x1), _ in dataloader:
            loss = criterion(model(x0.to(device)), model(x1.to(device)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}, loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
