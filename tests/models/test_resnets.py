"""ResNets equal torchvision's, with its own stem or with the one for small images."""

import pytest
import torch
from torch import nn

from intnacl.models.resnets import RESNETS, ResNet, SmallNet


def torchvision_resnet(name: str) -> nn.Module:
    """torchvision's own network, its stem replaced by 3×3 stride 1 and no pooling, without classifier."""
    import torchvision

    net = getattr(torchvision.models, name)()
    net.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    net.maxpool, net.fc = nn.Identity(), nn.Identity()
    return net


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_resnets_with_the_imagenet_stem_equal_torchvisions(training):
    import torchvision

    theirs, ours = (
        torchvision.models.resnet18().double(),
        ResNet(*RESNETS["resnet18"], imagenet_stem=True).double(),
    )
    theirs.fc = nn.Identity()
    ours.load_state_dict(theirs.state_dict())
    x = torch.rand(2, 3, 64, 64, dtype=torch.float64)
    results = [net.train(training)(x) for net in (ours, theirs)]
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", RESNETS)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_resnets_with_the_small_stem_equal_torchvisions_with_that_stem(name, training):
    theirs, ours = torchvision_resnet(name).double(), ResNet(*RESNETS[name]).double()
    for buffer in theirs.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    ours.load_state_dict(theirs.state_dict())
    x = torch.rand(2, 3, 16, 16, dtype=torch.float64)
    results = [net.train(training)(x) for net in (ours, theirs)]
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)
    papers = 11_168_832  # parameters of the paper's network
    assert name != "resnet18" or sum(p.numel() for p in ours.parameters()) == papers


def test_gradients_of_the_small_net_keep_the_memory_format_of_its_activations():
    """Otherwise the backward pass copies or reads memory with strides: an eighth of a step on digits."""
    net, formats = SmallNet().to(memory_format=torch.channels_last), []
    for layer in net.layers:
        if isinstance(layer, nn.BatchNorm2d):
            layer.register_full_backward_pre_hook(
                lambda _, grad: formats.append(grad[0].is_contiguous(memory_format=torch.channels_last))
            )
    x = torch.rand(4, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    features = net(x)
    features.square().sum().backward()
    assert formats == [True] * 3
    net.zero_grad()
    torch.testing.assert_close(features, net.layers(x).mean((2, 3)))
