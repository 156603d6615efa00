"""Backbones: ResNets with the stem for CIFAR or ImageNet, and a small network for 8×8 digits.

Shapes: B images, F features.
"""

from torch import Tensor, nn

from intnacl.models.batchnorm import EqualPair, norm_relu

USUAL_WIDTH = 64  # channels of a ResNet's stem


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut, named as in torchvision, so that state dicts are exchangeable."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(in_channels, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, 1)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(in_channels, width * self.expansion, stride)

    def forward(self, x: EqualPair) -> EqualPair:
        """relu(bn(conv(relu(bn(conv(x))))) + shortcut(x))."""
        straight, shortcut = x
        y, _ = norm_relu(self.bn1, self.conv1(straight))
        return norm_relu(self.bn2, self.conv2(y), self.downsample(shortcut))


class Bottleneck(nn.Module):
    """1×1, 3×3, 1×1 convolutions and a shortcut."""

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(in_channels, width, 1, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv(width, width * self.expansion, 1, 1)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.downsample = _shortcut(in_channels, width * self.expansion, stride)

    def forward(self, x: EqualPair) -> EqualPair:
        """relu(bn(conv(relu(bn(conv(relu(bn(conv(x)))))))) + shortcut(x))."""
        straight, shortcut = x
        y, _ = norm_relu(self.bn1, self.conv1(straight))
        y, _ = norm_relu(self.bn2, self.conv2(y))
        return norm_relu(self.bn3, self.conv3(y), self.downsample(shortcut))


class ResNet(nn.Module):
    """A ResNet whose features are the averages of the last stage over all positions.

    The stem for small images is a 3×3 convolution of stride 1; that for ImageNet is a 7×7 convolution of
    stride 2 with max-pooling after it. `width` is the number of channels of the stem; the stages have 1, 2, 4
    and 8 times as many, and `Bottleneck` multiplies them by 4.
    """

    def __init__(
        self,
        block: type[Block] | type[Bottleneck],
        depths: tuple[int, int, int, int],
        width: int = USUAL_WIDTH,
        *,
        imagenet_stem: bool = False,
    ) -> None:
        super().__init__()
        self.conv1 = _conv(3, width, 7, 2) if imagenet_stem else _conv(3, width, 3, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if imagenet_stem else nn.Identity()
        in_channels = width
        stages = []
        for stage, depth in enumerate(depths):
            strides = [1 if stage == 0 else 2] + [1] * (depth - 1)
            channels = width * 2**stage
            out_channels = channels * block.expansion
            blocks = [
                block(i, channels, s)
                for i, s in zip([in_channels] + [out_channels] * (depth - 1), strides, strict=True)
            ]
            stages.append(nn.Sequential(*blocks))
            in_channels = out_channels
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.num_features = in_channels

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, F)."""
        straight, shortcut = norm_relu(self.bn1, self.conv1(x))
        if isinstance(self.maxpool, nn.MaxPool2d):
            straight = shortcut = self.maxpool(straight)
        y, _ = self.layer4(self.layer3(self.layer2(self.layer1((straight, shortcut)))))
        features: Tensor = y.mean((2, 3))
        return features


class SmallNet(nn.Module):
    """Three convolutions for 8×8 images on a CPU."""

    num_features = 128

    def __init__(self) -> None:
        super().__init__()
        widths = ((3, 32, 1), (32, 64, 2), (64, 128, 1))
        layers: list[nn.Module] = []
        for in_channels, out_channels, stride in widths:
            layers += [_conv(in_channels, out_channels, 3, stride), nn.BatchNorm2d(out_channels), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, 128)."""
        for conv, norm in zip(self.layers[0::3], self.layers[1::3], strict=True):
            x, _ = norm_relu(norm, conv(x))
        # The mean, written as a sum: the gradient of mean() is a full tensor in another memory format than
        # x, which cost an eighth of a step on digits.
        features: Tensor = x.sum((2, 3)) / (x.shape[2] * x.shape[3])
        return features


def _conv(in_channels: int, out_channels: int, kernel: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, bias=False)


def _shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return nn.Sequential(_conv(in_channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels))


RESNETS: dict[str, tuple[type[Block] | type[Bottleneck], tuple[int, int, int, int]]] = {
    "resnet18": (Block, (2, 2, 2, 2)),
    "resnet34": (Block, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
}
