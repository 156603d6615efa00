"""Backbones for small images: ResNets with the CIFAR stem, and a net for 8×8 digits.

Shapes: B images, F features.
"""

import importlib.util

import torch
from torch import Tensor, nn

from intnacl.models.batchnorm import Twice, ViewBatchNorm, norm_relu, use_kernels


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut; names as in torchvision, so that state dicts are exchangeable."""

    expansion = 1

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inside, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, 1)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(inside, width * self.expansion, stride)

    def forward(self, x: Twice) -> Twice:
        """relu(bn(conv(relu(bn(conv(x))))) + shortcut(x))."""
        straight, again = x
        y, _ = norm_relu(self.bn1, self.conv1(straight))
        return norm_relu(self.bn2, self.conv2(y), self.downsample(again))


class Bottleneck(nn.Module):
    """1×1, 3×3, 1×1 convolutions and a shortcut."""

    expansion = 4

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inside, width, 1, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv(width, width * self.expansion, 1, 1)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.downsample = _shortcut(inside, width * self.expansion, stride)

    def forward(self, x: Twice) -> Twice:
        """relu(bn(conv(relu(bn(conv(relu(bn(conv(x)))))))) + shortcut(x))."""
        straight, again = x
        y, _ = norm_relu(self.bn1, self.conv1(straight))
        y, _ = norm_relu(self.bn2, self.conv2(y))
        return norm_relu(self.bn3, self.conv3(y), self.downsample(again))


class Stem(nn.Conv2d):
    """The first convolution; `kernels` says whether a GPU trains it with those of `fused_stem`."""

    kernels = False

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, 64, H, W)."""
        if (
            self.kernels
            and self.training
            and x.is_cuda
            and self.weight.dtype in (torch.bfloat16, torch.float16)
        ):
            from intnacl.models.kernels.stem import convolve

            return convolve(x, self.weight)
        return super().forward(x)


class ResNet(nn.Module):
    """A ResNet for small images: 3×3 stride-1 stem, no max-pooling, features are the averages."""

    def __init__(self, block: type[Block] | type[Bottleneck], depths: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.conv1 = Stem(3, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        inside = 64
        stages = []
        for stage, (depth, width) in enumerate(zip(depths, (64, 128, 256, 512), strict=True)):
            strides = [1 if stage == 0 else 2] + [1] * (depth - 1)
            outside = width * block.expansion
            blocks = [
                block(i, width, s) for i, s in zip([inside] + [outside] * (depth - 1), strides, strict=True)
            ]
            stages.append(nn.Sequential(*blocks))
            inside = outside
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.num_features = inside

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, F)."""
        twice = norm_relu(self.bn1, self.conv1(x))
        y, _ = self.layer4(self.layer3(self.layer2(self.layer1(twice))))
        features: Tensor = y.mean((2, 3))
        return features


class SmallNet(nn.Module):
    """Three convolutions for 8×8 images on a CPU."""

    num_features = 128

    def __init__(self) -> None:
        super().__init__()
        widths = ((3, 32, 1), (32, 64, 2), (64, 128, 1))
        layers: list[nn.Module] = []
        for inside, outside, stride in widths:
            layers += [_conv(inside, outside, 3, stride), nn.BatchNorm2d(outside), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, 128)."""
        features: Tensor = self.layers(x).mean((2, 3))
        return features


def fuse(module: nn.Module, on: bool) -> bool:
    """Let the ResNets in `module` train with kernels of our own if `on` and all batch norms can.

    Returns whether they do: what is between their kernels is convolutions, so that `torch.compile` would
    have nothing to add but its own time.
    """
    resnets = [part for part in module.modules() if isinstance(part, ResNet)]
    norms = [part for part in module.modules() if isinstance(part, ViewBatchNorm)]
    suited = bool(resnets) and bool(norms) and all(norm.fusible for norm in norms)
    fused = on and suited and importlib.util.find_spec("triton") is not None
    use_kernels(module, fused)
    for resnet in resnets:
        resnet.conv1.kernels = fused
    return fused


def _conv(inside: int, outside: int, kernel: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inside, outside, kernel, stride, kernel // 2, bias=False)


def _shortcut(inside: int, outside: int, stride: int) -> nn.Module:
    if stride == 1 and inside == outside:
        return nn.Identity()
    return nn.Sequential(_conv(inside, outside, 1, stride), nn.BatchNorm2d(outside))


RESNETS: dict[str, tuple[type[Block] | type[Bottleneck], tuple[int, int, int, int]]] = {
    "resnet18": (Block, (2, 2, 2, 2)),
    "resnet34": (Block, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
}
