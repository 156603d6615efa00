"""ResNets: torchvision's with another stem, and with kernels of our own on a GPU alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from intnacl.models.batchnorm import ViewBatchNorm, convert, remove_norms
from intnacl.models.resnets import RESNETS, ResNet, fuse


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


def test_fuse_leaves_torchs_layers_where_there_is_no_gpu() -> None:
    net = resnet("resnet18")
    convert(net, adversarial=False)
    assert not fuse(net, on=True)
    assert not any(layer.kernels for layer in net.modules() if isinstance(layer, ViewBatchNorm))


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


CASES = {
    "float32": (convert, torch.float32, True),
    "float64": (convert, torch.float64, False),
    "synchronised": (partial(convert, sync=True), torch.float32, False),
    "no batch norm": (remove_norms, torch.float32, False),
}


@pytest.mark.parametrize(("arranged", "dtype", "fused"), CASES.values(), ids=CASES)
def test_fuse_leaves_to_the_compiler_what_kernels_cannot_do(
    arranged: Callable[[nn.Module], None], dtype: torch.dtype, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    with FakeTensorMode(), torch.device("cuda"), default_dtype(dtype):  # a GPU that is nothing but a name
        try:
            net = resnet("resnet18")
        except RuntimeError as error:
            pytest.skip(f"this torch asks the driver even for fake tensors: {str(error).splitlines()[0]}")
        arranged(net)
        layers = [layer for layer in net.modules() if isinstance(layer, ViewBatchNorm)]
        for on in (True, False):
            assert fuse(net, on=on) is (on and fused)
            assert {layer.kernels for layer in [net.conv1, *layers]} == {on and fused}
        assert not fuse(nn.Linear(2, 2), on=True)


@pytest.mark.parametrize(
    ("shape", "groups", "suits"),
    [
        ((4, 3), 2, True),
        ((2, 3), 2, False),
        ((2, 3, 1, 1), 2, False),
        ((2, 3, 2, 2), 2, True),
        ((2**15, 2**15, 2, 1), 2, False),
    ],
)
def test_kernels_take_several_values_a_view_and_not_too_many(shape: tuple, groups: int, suits: bool) -> None:
    norm = ViewBatchNorm(shape[1], adversarial=False, adversarial_momentum=0.01, sync=False)
    norm.kernels, norm.groups = True, ((1, False),) * groups
    with FakeTensorMode():
        x = torch.empty(shape, device="cuda")
    assert norm._suits_kernels(x) is suits
    assert not norm._suits_kernels(torch.ones(4, 3))
    assert not norm.eval()._suits_kernels(x)
    norm.train().momentum = None  # as `update_bn` has it: the mean over all batches is torch's to count
    assert not norm._suits_kernels(x)
