"""Fused batch norm, shortcut and ReLU equal torch's: results, gradients and running statistics.

`test_batchnorm.py` runs this file in a process of its own, where Triton may interpret its kernels.
"""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from intnacl.evaluation.precision import exact_float32
from intnacl.models.batchnorm import Group, ViewBatchNorm, convert, stacked
from intnacl.models.kernels.batchnorm import norm_relu
from intnacl.models.resnets import Block, ResNet

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Groups = tuple[Group, ...]
Pair = tuple[
    nn.BatchNorm2d, nn.BatchNorm2d | None
]  # of clean views, and of adversarial ones if it is another
B, C = 4, 70  # channels that fill one tile and part of another


def norms(channels: int = C) -> tuple[nn.BatchNorm2d, nn.BatchNorm2d]:
    made = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels, momentum=0.01)
    for norm in made:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return made[0].to(DEVICE), made[1].to(DEVICE)


def by_torch(x: Tensor, pair: Pair, groups: Groups) -> Tensor:
    share = len(x) // sum(views for views, _ in groups)
    parts = x.split([views * share for views, _ in groups])
    return torch.cat([(pair[a] or pair[0])(part) for (_, a), part in zip(groups, parts, strict=True)])


def assert_torchs(
    x: Tensor, pair: Pair, groups: Groups, relu: bool = True, shortcut: Tensor | None = None, g=None
) -> None:
    """Results, running statistics and all gradients, given the gradients `g` of the two consumers."""
    torchs = deepcopy(pair)
    found = norm_relu(x, *pair, groups, relu=relu, shortcut=shortcut)
    y = by_torch(x, torchs, groups) + (0 if shortcut is None else shortcut)
    y = y.relu() if relu else y
    torch.testing.assert_close(found[0], y, rtol=1e-4, atol=1e-5)
    assert found[0].data_ptr() == found[1].data_ptr()
    given, sets = [torch.randn_like(y), torch.randn_like(y)] if g is None else [g], []
    for norms, results in ((pair, found), (torchs, (y, y))):
        total = sum((result * g).sum() for result, g in zip(results, given, strict=False))
        inputs = [x, shortcut, *(p for norm in norms if norm for p in norm.parameters())]
        wanted = [one for one in inputs if one is not None and one.requires_grad]
        statistics = [(norm.running_mean, norm.running_var) for norm in norms if norm]
        sets.append((torch.autograd.grad(total, wanted, allow_unused=True), statistics))
    torch.testing.assert_close(*sets, rtol=1e-3, atol=1e-4)


def images(views: int, dtype: torch.dtype = torch.float32) -> Tensor:
    x = torch.randn(views * B, C, 5, 5, device=DEVICE, dtype=dtype) * 2 + 1
    return x.contiguous(memory_format=torch.channels_last).requires_grad_()


CLEAN, ATTACKED = (1, False), (1, True)
GROUPS = [(CLEAN, CLEAN), ((2, False),), (CLEAN, CLEAN, ATTACKED), ((2, False), ATTACKED), (ATTACKED,)]
KINDS = {"norm": (False, False), "norm, ReLU": (True, False), "norm, shortcut, ReLU": (True, True)}


@pytest.mark.parametrize("groups", GROUPS, ids=str)
@pytest.mark.parametrize(("relu", "added"), KINDS.values(), ids=KINDS)
def test_results_gradients_and_running_statistics_are_torchs(groups, relu, added):
    views = sum(count for count, _ in groups)
    assert_torchs(images(views), norms(), groups, relu, images(views) if added else None)


def test_one_consumer_one_set_frozen_parameters_and_vectors_work():
    x, (norm, other), flat = images(2), norms(), nn.BatchNorm1d(C).to(DEVICE)
    assert_torchs(x, (norm, None), (CLEAN, ATTACKED))
    assert_torchs(x, (other.requires_grad_(False), None), (CLEAN, CLEAN), g=torch.randn_like(x))
    assert_torchs(torch.randn(2 * 40, C, device=DEVICE), (flat, None), (CLEAN, CLEAN), relu=False)


@pytest.mark.parametrize("places", [(3, 3), (1, 1)], ids=["3x3", "1x1"])
@pytest.mark.parametrize("count", [1, 3])
def test_any_memory_layout_works(places, count):
    """Of x, of the shortcut and of gradients, be they expanded from fewer numbers."""
    x = torch.randn(2 * count + 1, 6, *places, device=DEVICE)[1:].requires_grad_()
    shortcut = torch.randn(*places, 2 * count, 6, device=DEVICE).permute(2, 3, 0, 1).requires_grad_()
    g = torch.randn(2 * count, 6, 1, 1, device=DEVICE).expand_as(x)
    assert_torchs(x, (norms(6)[0], None), ((2, False),), shortcut=shortcut, g=g)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype):
    x, (norm, _) = images(2, dtype), norms()
    y, _ = norm_relu(x, norm, None, (CLEAN, CLEAN), relu=True)
    exact = by_torch(x.float(), (norm, None), (CLEAN, CLEAN)).relu()
    torch.testing.assert_close(y, exact.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_equal_calls_give_equal_bytes():
    x, (norm, _) = images(2), norms()
    results = [norm_relu(x, norm, None, ((2, False),), relu=True)[0] for _ in range(2)]
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in results]
    assert torch.equal(*results)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("groups", [((2, False),), (CLEAN, CLEAN), (CLEAN, ATTACKED)], ids=str)
def test_the_variance_survives_a_mean_of_a_hundred_deviations(groups):
    noise, (norm, other) = torch.randn(16, C, 5, 5, device=DEVICE), norms()
    x = torch.cat([noise[:8] + 100, noise[8:] + (100 if len(groups) == 1 else -100)])
    y, _ = norm_relu(x, norm, other, groups, relu=False)
    exact = by_torch(x.double(), (norm.double(), other.double()), groups)
    torch.testing.assert_close(y, exact.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("by", ["x", "weight", "bias"])
def test_a_second_derivative_is_refused(by, kind):
    """Autograd cannot see into kernels: without an error the gradient would count as a constant."""
    (relu, added), (norm, _), x = kind, norms(), images(2)
    y, _ = norm_relu(x, norm, None, (CLEAN, CLEAN), relu=relu, shortcut=images(2) if added else None)
    (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    for loss in (y.sum() + gradient.square().sum(), gradient.square().sum()):
        with pytest.raises(RuntimeError, match="cannot be differentiated again"):
            torch.autograd.grad(loss, {"x": x, "weight": norm.weight, "bias": norm.bias}[by])


class NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return None


def test_without_an_incoming_gradient_there_is_no_gradient():
    x, (norm, _) = images(2), norms()
    y, _ = norm_relu(x, norm, None, (CLEAN, CLEAN), relu=True)
    assert torch.autograd.grad(NoGradient.apply(y).sum(), x, allow_unused=True) == (None,)


@pytest.mark.parametrize("groups", [(CLEAN,) * 3, (CLEAN, (3, False)), (ATTACKED, CLEAN), ((2, True),)])
def test_unsupported_groups_are_refused(groups):
    with pytest.raises(AssertionError):
        norm_relu(images(2), *norms(), groups, relu=True)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_images_may_be_on_another_gpu_than_the_current_one():
    x, norm = images(2).detach().to("cuda:1"), norms()[0].to("cuda:1")
    assert torch.cuda.current_device() == 0
    y, _ = norm_relu(x, norm, None, ((2, False),), relu=True)
    torch.testing.assert_close(y, norm(x).relu(), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's, who interprets
def test_relu_keeps_nan():
    norm, _ = norms()
    x = images(2).detach()
    x[0, 3, 1, 1], x[-1, 5, 2, 2] = torch.nan, torch.inf
    y, _ = norm_relu(x, norm, None, (CLEAN, CLEAN), relu=True)
    assert y[:B, 3].isnan().all()
    assert y[-B:, 5].isnan().all()
    assert y.isnan().sum() == y[:B, 3].numel() + y[-B:, 5].numel()
    assert norm.running_var[3].isnan()


def test_a_resnet_with_kernels_equals_one_without():
    net = convert(ResNet(Block, (1, 1, 1, 1))).to(DEVICE, memory_format=torch.channels_last)
    x, found = torch.randn(3 * 8, 3, 8, 8, device=DEVICE), []
    for kernel in (None, norm_relu):
        copy = deepcopy(net)
        for layer in copy.modules():
            if isinstance(layer, ViewBatchNorm):
                layer.kernel = kernel  # `fuse` would need a GPU for that
        # TF32 convolutions would drown the difference in rounding.
        with exact_float32(), stacked(copy, (CLEAN, CLEAN, ATTACKED)):
            features = copy(x)
            gradients = torch.autograd.grad(features.square().sum(), list(copy.parameters()))
        found.append((features, *gradients, *[b.float() for b in copy.buffers()]))
    for plain, fused in zip(*found, strict=True):
        assert (fused - plain).norm() <= 1e-3 * plain.norm()
