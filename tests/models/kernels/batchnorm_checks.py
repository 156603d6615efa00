"""Batch norm, shortcut and ReLU by kernels: as torch has them, forwards, backwards, and running statistics.

`test_batchnorm.py` runs this file in a process of its own, where Triton may interpret its kernels.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intnacl.evaluation.precision import exact_float32
from intnacl.models.batchnorm import Group, ViewBatchNorm, convert, stacked
from intnacl.models.kernels.batchnorm import norm_relu
from intnacl.models.resnets import Block, ResNet

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Groups = tuple[Group, ...]
B, C = 4, 70  # channels that fill one tile and part of another


def norms() -> tuple[nn.BatchNorm2d, nn.BatchNorm2d]:
    made = nn.BatchNorm2d(C), nn.BatchNorm2d(C, momentum=0.01)
    for norm in made:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return made[0].to(DEVICE), made[1].to(DEVICE)


def by_torch(x: Tensor, pair: tuple[nn.BatchNorm2d, nn.BatchNorm2d], groups: Groups) -> Tensor:
    share = len(x) // sum(views for views, _ in groups)
    parts = x.split([views * share for views, _ in groups])
    return torch.cat([pair[attacked](part) for (_, attacked), part in zip(groups, parts, strict=True)])


def images(views: int, dtype: torch.dtype = torch.float32) -> Tensor:
    x = torch.randn(views * B, C, 5, 5, device=DEVICE, dtype=dtype) * 2 + 1
    return x.contiguous(memory_format=torch.channels_last).requires_grad_()


CLEAN, ATTACKED = (1, False), (1, True)
GROUPS = {
    "two views": (CLEAN, CLEAN),
    "two views together": ((2, False),),
    "with an adversarial one": (CLEAN, CLEAN, ATTACKED),
    "together, and an adversarial one": ((2, False), ATTACKED),
    "an adversarial one alone": (ATTACKED,),
}
KINDS = {"norm": (False, False), "norm, ReLU": (True, False), "norm, shortcut, ReLU": (True, True)}


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize(("relu", "added"), KINDS.values(), ids=KINDS)
def test_results_gradients_and_running_statistics_are_torchs(groups: Groups, relu: bool, added: bool) -> None:
    torch.manual_seed(0)
    views = sum(count for count, _ in groups)
    x, shortcut = images(views), images(views) if added else None
    mine, torchs = norms(), norms()
    for a, b in zip(mine, torchs, strict=True):
        b.load_state_dict(a.state_dict())
    one, two = norm_relu(x, *mine, groups, relu=relu, shortcut=shortcut)
    y = by_torch(x, torchs, groups)
    y = y if shortcut is None else y + shortcut
    y = y.relu() if relu else y
    torch.testing.assert_close(one, y, rtol=1e-4, atol=1e-5)
    assert one.data_ptr() == two.data_ptr()
    for name in ("running_mean", "running_var"):
        for a, b in zip(mine, torchs, strict=True):
            torch.testing.assert_close(getattr(a, name), getattr(b, name))

    g, h = torch.randn_like(y), torch.randn_like(y)
    inputs = [x] if shortcut is None else [x, shortcut]
    wanted = torch.autograd.grad((y * (g + h)).sum(), [*inputs, *parameters(torchs)], allow_unused=True)
    found = torch.autograd.grad((one * g + two * h).sum(), [*inputs, *parameters(mine)], allow_unused=True)
    for a, b in zip(found, wanted, strict=True):
        assert (a is None) == (b is None)
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4) if b is not None else None


def parameters(pair: tuple[nn.BatchNorm2d, nn.BatchNorm2d]) -> list[Tensor]:
    return [parameter for norm in pair for parameter in (norm.weight, norm.bias)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, (norm, _) = images(2, dtype), norms()
    y, _ = norm_relu(x, norm, None, (CLEAN, CLEAN), relu=True)
    exact = torch.cat([F.batch_norm(p.float(), None, None, norm.weight, norm.bias, True) for p in x.chunk(2)])
    assert y.dtype == dtype
    torch.testing.assert_close(y, exact.relu().to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_one_user_is_enough_and_frozen_parameters_get_nothing() -> None:
    x, (norm, _) = images(2), norms()
    norm.requires_grad_(False)
    y, _ = norm_relu(x, norm, None, (CLEAN, CLEAN), relu=True)
    wanted = by_torch(x, (norm, norm), (CLEAN, CLEAN)).relu()
    g = torch.randn_like(y)
    found = [torch.autograd.grad((one * g).sum(), x) for one in (y, wanted)]
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


def test_vectors_are_rows_too() -> None:
    x, (norm, _) = torch.randn(2 * 40, C, device=DEVICE), norms()
    y, _ = norm_relu(x, norm, None, (CLEAN, CLEAN), relu=False)
    wanted = [F.batch_norm(part, None, None, norm.weight, norm.bias, True) for part in x.chunk(2)]
    torch.testing.assert_close(y, torch.cat(wanted), rtol=1e-4, atol=1e-5)


def test_equal_calls_give_equal_bytes() -> None:
    x, (norm, _) = images(2), norms()
    results = [norm_relu(x, norm, None, ((2, False),), relu=True)[0] for _ in range(2)]
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in results]
    assert torch.equal(*results)
    assert torch.equal(*gradients)


def test_without_a_second_set_adversarial_views_train_the_first() -> None:
    x, (norm, _), groups = images(2), norms(), (CLEAN, ATTACKED)
    y, _ = norm_relu(x, norm, None, groups, relu=True)
    wanted = by_torch(x, (norm, norm), groups).relu()
    found = [torch.autograd.grad(one.square().sum(), [norm.weight, norm.bias]) for one in (y, wanted)]
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("places", [(3, 3), (1, 1)], ids=["3x3", "1x1"])
@pytest.mark.parametrize("count", [1, 3])
def test_any_order_in_memory_will_do(places: tuple[int, int], count: int) -> None:
    """Of x, of the shortcut and of gradients, be they expanded from fewer numbers."""
    torch.manual_seed(0)
    channels = 6
    norm = nn.BatchNorm2d(channels).to(DEVICE)
    rows = torch.randn(2 * count + 1, channels, *places, device=DEVICE)
    x = rows[1:].clone().requires_grad_()
    shortcut = torch.randn(*places, 2 * count, channels, device=DEVICE).permute(2, 3, 0, 1).requires_grad_()
    weights = torch.randn(2 * count, channels, 1, 1, device=DEVICE).expand_as(x)
    groups = ((2, False),)
    found = norm_relu(x, norm, None, groups, relu=True, shortcut=shortcut)
    wanted = (norm(x) + shortcut).relu()
    torch.testing.assert_close(found[0], wanted, rtol=1e-4, atol=1e-5)
    gradients = [torch.autograd.grad((y * weights).sum(), [x, shortcut]) for y in (found[0], wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("groups", [((2, False),), (CLEAN, CLEAN), (CLEAN, ATTACKED)], ids=str)
def test_the_variance_survives_a_mean_of_a_hundred_deviations(groups: Groups) -> None:
    torch.manual_seed(0)
    noise, (norm, other) = torch.randn(16, C, 5, 5, device=DEVICE), norms()
    x = torch.cat([noise[:8] + 100, noise[8:] + (100 if len(groups) == 1 else -100)])
    y, _ = norm_relu(x, norm, other, groups, relu=False)
    exact = by_torch(x.double(), (norm.double(), other.double()), groups)
    torch.testing.assert_close(y, exact.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("by", ["x", "weight", "bias"])
def test_a_second_derivative_is_refused(by: str, kind: tuple[bool, bool]) -> None:
    """Kernels leave no trace for autograd: without a word the gradient would count as a constant."""
    (relu, added), (norm, _) = kind, norms()
    x, shortcut = images(2), images(2) if added else None
    y, _ = norm_relu(x, norm, None, (CLEAN, CLEAN), relu=relu, shortcut=shortcut)
    inputs = {"x": x, "weight": norm.weight, "bias": norm.bias}
    (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        torch.autograd.grad(y.sum() + gradient.square().sum(), inputs[by])
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        torch.autograd.grad(gradient.square().sum(), inputs[by])


class NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return None


def test_no_gradient_in_is_no_gradient_out() -> None:
    x, (norm, _) = images(2), norms()
    y, _ = norm_relu(x, norm, None, (CLEAN, CLEAN), relu=True)
    assert torch.autograd.grad(NoGradient.apply(y).sum(), x, allow_unused=True) == (None,)


@pytest.mark.parametrize("groups", [(CLEAN,) * 3, (CLEAN, (3, False)), (ATTACKED, CLEAN), ((2, True),)])
def test_groups_that_kernels_do_not_know_are_refused(groups: Groups) -> None:
    with pytest.raises(AssertionError):
        norm_relu(images(2), *norms(), groups, relu=True)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_images_may_be_on_another_gpu_than_the_current_one() -> None:
    x, norm = images(2).detach().to("cuda:1"), norms()[0].to("cuda:1")
    assert torch.cuda.current_device() == 0
    y, _ = norm_relu(x, norm, None, ((2, False),), relu=True)
    torch.testing.assert_close(y, norm(x).relu(), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's, who interprets
def test_what_is_not_a_number_is_not_rectified_away() -> None:
    norm, _ = norms()
    x = images(2).detach()
    x[0, 3, 1, 1], x[-1, 5, 2, 2] = torch.nan, torch.inf
    y, _ = norm_relu(x, norm, None, (CLEAN, CLEAN), relu=True)
    assert y[:B, 3].isnan().all()
    assert y[-B:, 5].isnan().all()
    assert y.isnan().sum() == y[:B, 3].numel() + y[-B:, 5].numel()
    assert norm.running_var[3].isnan()


def test_a_resnet_with_kernels_is_the_one_without() -> None:
    torch.manual_seed(0)
    net = ResNet(Block, (1, 1, 1, 1))
    convert(net)
    net.to(DEVICE, memory_format=torch.channels_last)
    x = torch.randn(3 * 8, 3, 8, 8, device=DEVICE)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found = []
    for kernel in (None, norm_relu):
        net.load_state_dict(before)
        for layer in net.modules():
            if isinstance(layer, ViewBatchNorm):
                layer.kernel = kernel  # `fuse` would need a GPU for that
        # TF32 convolutions would drown the difference in rounding.
        with exact_float32(), stacked(net, (CLEAN, CLEAN, ATTACKED)):
            features = net(x)
            gradients = torch.autograd.grad(features.square().sum(), list(net.parameters()))
        found.append((features, *gradients, *[b.float() for b in net.buffers()]))
    for plain, fused in zip(*found, strict=True):
        assert (fused - plain).norm() <= 1e-3 * plain.norm()
