"""ResNets are torchvision's with another stem."""

import pytest
import torch
from torch import nn

from intnacl.models.resnets import RESNETS, ResNet


def resnet(name: str) -> ResNet:
    return ResNet(*RESNETS[name])


def torchvision_resnet(name: str) -> nn.Module:
    """torchvision's own network, its stem replaced by 3×3 stride 1 and no pooling, without classifier."""
    import torchvision

    net = getattr(torchvision.models, name)()
    net.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    net.maxpool, net.fc = nn.Identity(), nn.Identity()
    return net


def test_resnet18_has_the_papers_number_of_parameters() -> None:
    net = resnet("resnet18")
    assert sum(p.numel() for p in net.parameters()) == 11_168_832


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_names_and_shapes_are_torchvisions(name: str) -> None:
    import torchvision

    theirs = {k: v.shape for k, v in getattr(torchvision.models, name)().state_dict().items()}
    ours = {k: v.shape for k, v in resnet(name).state_dict().items()}
    assert ours.keys() == theirs.keys() - {"fc.weight", "fc.bias"}
    assert {k for k in ours if ours[k] != theirs[k]} == {"conv1.weight"}


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_forward_equals_torchvision_with_the_stem_replaced(name: str, training: bool) -> None:
    theirs = torchvision_resnet(name).double()
    ours = resnet(name).double()
    for buffer in theirs.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    keys = ours.load_state_dict(theirs.state_dict())
    assert not keys.missing_keys
    assert not keys.unexpected_keys
    x = torch.rand(2, 3, 16, 16, dtype=torch.float64)
    theirs.train(training)
    ours.train(training)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-9, atol=1e-9)
