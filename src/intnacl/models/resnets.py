"""Backbones: ResNets with CIFAR's or ImageNet's stem, and a net for 8×8 digits.

Shapes: B images, F features.
"""

from torch import Tensor, nn

from intnacl.models.batchnorm import EqualPair, norm_relu

USUAL_WIDTH = 64  # channels of a ResNet's stem


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

    def forward(self, x: EqualPair) -> EqualPair:
        """relu(bn(conv(relu(bn(conv(x))))) + shortcut(x))."""
        straight, shortcut = x
        y, _ = norm_relu(self.bn1, self.conv1(straight))
        return norm_relu(self.bn2, self.conv2(y), self.downsample(shortcut))


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

    def forward(self, x: EqualPair) -> EqualPair:
        """relu(bn(conv(relu(bn(conv(relu(bn(conv(x)))))))) + shortcut(x))."""
        straight, shortcut = x
        y, _ = norm_relu(self.bn1, self.conv1(straight))
        y, _ = norm_relu(self.bn2, self.conv2(y))
        return norm_relu(self.bn3, self.conv3(y), self.downsample(shortcut))


class ResNet(nn.Module):
    """A ResNet whose features are the averages.

    For small images its stem is a 3×3 convolution of stride 1; ImageNet's is a 7×7 one of stride 2 with
    max-pooling after it. `width` is the number of channels of the stem, which the stages multiply by 1, 2, 4
    and 8.
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
        inside = width
        stages = []
        for stage, depth in enumerate(depths):
            strides = [1 if stage == 0 else 2] + [1] * (depth - 1)
            channels = width * 2**stage
            outside = channels * block.expansion
            blocks = [
                block(i, channels, s)
                for i, s in zip([inside] + [outside] * (depth - 1), strides, strict=True)
            ]
            stages.append(nn.Sequential(*blocks))
            inside = outside
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.num_features = inside

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
        for inside, outside, stride in widths:
            layers += [_conv(inside, outside, 3, stride), nn.BatchNorm2d(outside), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, 128)."""
        for conv, norm in zip(self.layers[0::3], self.layers[1::3], strict=True):
            x, _ = norm_relu(norm, conv(x))
        # Their mean, written as a sum: the gradient of mean() is a full tensor in another memory format than
        # that of x, which took the backward pass an eighth of a step on digits.
        features: Tensor = x.sum((2, 3)) / (x.shape[2] * x.shape[3])
        return features


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
