"""A small convolutional classifier trained on scikit-learn's digits, which the tests of attacks use."""

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn


class SmallNet(nn.Module):
    """Pixels (B, 3, 8, 8) in [0, 1] -> features (B, 64), including normalisation and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(256, 64),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body((x - 0.5) / 0.5)  # type: ignore[no-any-return]


@cache
def digits() -> tuple[Tensor, Tensor]:
    """1,797 uint8 images (N, 3, 8, 8) and their labels."""
    data = load_digits()
    images = torch.from_numpy(data.images * 255 / 16).round().to(torch.uint8)
    return images[:, None].expand(-1, 3, -1, -1).contiguous(), torch.from_numpy(data.target).long()


@cache
def trained_model() -> nn.Sequential:
    """Encoder and linear layer, trained for a few epochs; callers must not change them."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(SmallNet(), nn.Linear(64, 10))
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        images, labels = digits()
        for _ in range(4):
            for batch in torch.randperm(1397).split(128):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images[batch] / 255), labels[batch]).backward()
                optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def held_out(count: int = 400) -> tuple[Tensor, Tensor]:
    """The last images, on which the model was not trained."""
    images, labels = digits()
    return images[-count:], labels[-count:]
