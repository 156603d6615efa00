"""Batch norm by groups of views: equal to torch's on each group, eager and compiled."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from intnacl.errors import InputError
from intnacl.models.batchnorm import (
    Groups,
    ViewBatchNorm,
    _all_groups,
    arrange,
    attacked,
    convert,
    remove_norms,
)

B, C = 4, 3


def layer(groups: Groups, adversarial: bool = True) -> ViewBatchNorm:
    norm = ViewBatchNorm(C, adversarial=adversarial, adversarial_momentum=0.01, sync=False).double()
    nn.init.normal_(norm.weight)
    norm.groups = groups
    return norm


@pytest.mark.parametrize(
    "groups",
    [((1, False),), ((1, False), (1, False)), ((2, False), (1, True)), ((1, False), (1, False), (1, True))],
)
@pytest.mark.parametrize("shape", [(5, 5), ()], ids=["images", "vectors"])
def test_each_group_is_normalised_by_itself(groups: Groups, shape: tuple[int, ...]) -> None:
    views = sum(count for count, _ in groups)
    x = torch.randn(views * B, C, *shape, dtype=torch.float64) * 3 + 1
    norm = layer(groups)
    expected, start = [], 0
    for count, adversarial in groups:
        part = x[start : start + count * B]
        own = norm.adversarial if adversarial else norm
        expected.append(F.batch_norm(part, None, None, own.weight, own.bias, True))
        start += count * B
    torch.testing.assert_close(norm(x), torch.cat(expected))


def test_running_statistics_take_the_groups_in_turn_and_keep_the_sets_apart() -> None:
    x = torch.randn(3 * B, C, 5, 5, dtype=torch.float64)
    norm, plain, attacked = (
        layer(((1, False), (1, False), (1, True))),
        nn.BatchNorm2d(C),
        nn.BatchNorm2d(C, momentum=0.01),
    )
    norm(x)
    for part in (x[:B], x[B : 2 * B]):
        plain.double()(part)
    attacked.double()(x[2 * B :])
    torch.testing.assert_close(norm.running_mean, plain.running_mean)
    torch.testing.assert_close(norm.running_var, plain.running_var)
    torch.testing.assert_close(norm.adversarial.running_var, attacked.running_var)


@pytest.mark.parametrize("groups", [((1, False), (1, False)), ((1, False), (1, True))])
def test_the_form_for_the_compiler_equals_torch(groups: Groups) -> None:
    x = (torch.randn(2 * B, C, 5, 5, dtype=torch.float64) * 2 + 5).requires_grad_()
    first, second = layer(groups), layer(groups)
    second.load_state_dict(first.state_dict())
    eager, together = first(x), _all_groups(x, [second._layer(attacked) for _, attacked in groups])
    torch.testing.assert_close(eager, together)
    weights = torch.randn_like(eager)
    grads = [torch.autograd.grad((y * weights).sum(), x)[0] for y in (eager, together)]
    torch.testing.assert_close(*grads)
    for a, b in zip(first.buffers(), second.buffers(), strict=True):
        torch.testing.assert_close(a, b, check_dtype=False) if a.is_floating_point() else None


@pytest.mark.parametrize("deviations", [10, 3000])
def test_the_form_for_the_compiler_keeps_its_variance_about_a_large_mean(deviations: int) -> None:
    norm = layer(((1, False),)).float()
    x = torch.randn(64, C, 8, 8) + deviations
    expected = F.batch_norm(x.double(), None, None, norm.weight.double(), norm.bias.double(), True).float()
    torch.testing.assert_close(_all_groups(x, [norm]), expected, rtol=1e-3, atol=1e-3)


def test_eval_mode_is_plain_batch_norm_of_the_clean_set() -> None:
    norm = layer(((1, False), (1, False))).eval()
    x = torch.randn(6, C, 5, 5, dtype=torch.float64)
    expected = F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias)
    torch.testing.assert_close(norm(x), expected)


def test_the_network_as_it_was_loads_the_clean_set_of_a_converted_one() -> None:
    before = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    convert(net := deepcopy(before))
    net(torch.randn(8, 3, 5, 5))  # moves the statistics
    keys = before.load_state_dict(net.state_dict(), strict=False)
    assert not keys.missing_keys
    assert all("adversarial" in key for key in keys.unexpected_keys)
    x = torch.randn(2, 3, 5, 5)
    torch.testing.assert_close(before.eval()(x), net.eval()(x))


def test_convert_replaces_every_batch_norm_and_arrange_reaches_all() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Sequential(nn.BatchNorm1d(4)))
    convert(net, adversarial=False)
    arrange(net, ((1, False), (1, True)))
    assert net[1].groups == net[2][0].groups == ((1, False), (1, True))
    remove_norms(bare := nn.Sequential(nn.BatchNorm2d(4)))
    assert isinstance(bare[0], nn.Identity)


def test_a_batch_norm_that_is_used_twice_stays_one() -> None:
    shared = nn.BatchNorm2d(4)
    net = nn.Sequential(shared, nn.ReLU(), shared, nn.Sequential(shared), nn.BatchNorm2d(4))
    convert(net)
    assert isinstance(net[0], ViewBatchNorm)
    assert net[0] is net[2] is net[3][0]
    assert net[4] is not net[0]
    before = list(net.modules())
    convert(net)
    assert list(net.modules()) == before  # nor are they, or those inside them, converted again


def test_what_is_inside_a_batch_norm_goes_with_it() -> None:
    class Double(nn.BatchNorm2d):
        def __init__(self) -> None:
            super().__init__(4)
            self.auxiliary = nn.BatchNorm2d(4, momentum=None)  # which could not be converted

    convert(net := nn.Sequential(Double()))
    assert isinstance(net[0], ViewBatchNorm)


@pytest.mark.parametrize("change", [convert, remove_norms])
def test_a_batch_norm_alone_is_an_error(change: Callable[[nn.Module], None]) -> None:
    with pytest.raises(InputError, match="Sequential"):
        change(nn.BatchNorm2d(4))


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm])
def test_convert_keeps_what_a_trained_layer_holds(kind: type[nn.Module]) -> None:
    old = kind(C, momentum=0.3, eps=0.02, dtype=torch.float64).eval()
    for value in (*old.parameters(), old.running_mean, old.running_var):
        nn.init.uniform_(value.data, 1, 2)
    old.bias.requires_grad_(False)
    convert(net := nn.Sequential(old))
    new = net[0]
    assert isinstance(new, ViewBatchNorm)
    assert new.sync == (kind is nn.SyncBatchNorm)
    assert not new.training
    assert (new.momentum, new.eps) == (0.3, 0.02)
    for layer in (new, new.adversarial):
        assert layer.weight.requires_grad
        assert not layer.bias.requires_grad
        for name, value in old.state_dict().items():
            torch.testing.assert_close(layer.state_dict()[name], value)


def test_convert_keeps_the_dropout_and_activation_that_timms_layers_end_in() -> None:
    layers = pytest.importorskip("timm.layers")
    x, old = torch.randn(B, C, 2, 2), layers.BatchNormAct2d(C, drop_layer=nn.Dropout)
    convert(net := nn.Sequential(deepcopy(old)))
    found = []
    for module in (old, net):
        torch.manual_seed(0)
        found.append(module(x))
    assert (found[0] == 0).float().mean() > 0.6  # either sets some to zero
    torch.testing.assert_close(*found)


def test_convert_gives_a_layer_without_parameters_none_to_learn() -> None:
    x = torch.randn(B, C, 2, 2)
    old = nn.BatchNorm2d(C, affine=False)
    convert(net := nn.Sequential(old))
    assert not [p for p in net.parameters() if p.requires_grad]
    torch.testing.assert_close(net(x), old(x))


def test_converting_again_changes_nothing() -> None:
    convert(net := nn.Sequential(nn.BatchNorm2d(C)))
    norm, state = net[0], deepcopy(net.state_dict())
    convert(net)
    assert net[0] is norm
    assert net.state_dict().keys() == state.keys()


def test_adversarial_views_leave_the_clean_statistics_alone_even_if_they_fail() -> None:
    convert(net := nn.Sequential(nn.BatchNorm2d(C)))
    norm = net[0]
    with attacked(net):
        net(torch.randn(B, C, 2, 2) + 5)
    assert (norm.running_mean == 0).all()
    assert (norm.adversarial.running_mean != 0).all()
    with pytest.raises(InputError), attacked(net):
        net(torch.randn(1, C, 1, 1))
    net(torch.randn(B, C, 2, 2) + 5)
    assert (norm.running_mean != 0).all()


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm])
def test_adversarial_views_are_refused_where_they_would_move_the_clean_statistics(norm: type) -> None:
    net = nn.Sequential(nn.Sequential(norm(C)), nn.BatchNorm2d(C))
    convert(net[1:])
    with (
        pytest.raises(InputError, match=rf"layer '0\.0' is a {norm.__name__}.*call intnacl\..*\.convert"),
        attacked(net),
    ):
        pass
    with attacked(net.eval()), attacked(nn.Linear(2, 2)):  # where nothing moves, there is nothing to refuse
        pass
    with attacked(nn.BatchNorm2d(C, track_running_stats=False)):
        pass


def test_in_eval_mode_adversarial_views_have_their_own_statistics_too() -> None:
    convert(net := nn.Sequential(nn.BatchNorm2d(C)))
    net[0].adversarial.running_mean.fill_(5)
    x = torch.randn(B, C, 2, 2)
    clean = net.eval()(x)
    with attacked(net):
        torch.testing.assert_close(net(x + 5), clean)


def test_torch_can_take_the_statistics_anew() -> None:
    """As after averaging weights: `update_bn` sets the momentum to None, for the mean over all batches."""
    ours, plain = ViewBatchNorm(3, adversarial=True, adversarial_momentum=0.1, sync=False), nn.BatchNorm2d(3)
    batches = [5 * torch.randn(8, 3, 2, 2) + 7 for _ in range(4)]
    for layer in (ours, plain):
        torch.optim.swa_utils.update_bn(batches, nn.Sequential(layer))
    torch.testing.assert_close(ours.running_mean, plain.running_mean)
    torch.testing.assert_close(ours.running_var, plain.running_var)
    assert ours.running_var.min() > 10


@pytest.mark.parametrize("options", [{"momentum": None}, {"track_running_stats": False}])
def test_running_statistics_without_momentum_or_none_at_all_are_refused(options: dict) -> None:
    """torch counts the batches then, or takes the batch's also in eval mode; ours would do neither."""
    with pytest.raises(InputError, match=r"momentum=None.*track_running_stats=False.*give it a momentum"):
        convert(nn.Sequential(nn.BatchNorm2d(4, **options)))


def test_one_value_a_channel_is_refused_with_the_remedy() -> None:
    layer = ViewBatchNorm(3, adversarial=False, adversarial_momentum=0.1, sync=False)
    with pytest.raises(InputError, match=r"one value a channel.*batch-size"):
        layer(torch.rand(1, 3, 1, 1))
    assert layer.eval()(torch.rand(1, 3, 1, 1)).isfinite().all()


@pytest.mark.filterwarnings("default")  # the compiler has its own
@pytest.mark.parametrize("compiled", [False, True])
def test_one_value_a_group_and_channel_is_refused_compiled_or_not(compiled: bool) -> None:
    """Two views of one image, each with statistics of its own, would get NaN."""
    layer = ViewBatchNorm(3, adversarial=False, adversarial_momentum=0.1, sync=False)
    layer.groups = ((1, False), (1, False))
    forward = torch.compile(layer, backend="eager") if compiled else layer
    with pytest.raises(InputError, match=r"one value a channel"):
        forward(torch.rand(2, 3))
    layer.groups = ((2, False),)
    assert forward(torch.rand(2, 3)).isfinite().all(), "one group of two views has a variance"
