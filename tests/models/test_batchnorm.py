"""Batch norm by groups of views: equal to torch's on each group, eager and compiled."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intnacl.errors import InputError
from intnacl.models import batchnorm
from intnacl.models.batchnorm import Group, ViewBatchNorm, convert, remove_norms, stacked
from mistakes import must_refuse, refused

B, C = 4, 3
CLEAN, ADVERSARIAL = (1, False), (1, True)
Groups = tuple[Group, ...]
GROUPS = [(CLEAN,), (CLEAN, CLEAN), ((2, False), ADVERSARIAL), (CLEAN, CLEAN, ADVERSARIAL), ((3, False),)]


def layer(groups: Groups = (CLEAN,), *, adversarial: bool = True) -> ViewBatchNorm:
    norm = ViewBatchNorm(C, adversarial=adversarial, adversarial_momentum=0.01, sync=False).double()
    nn.init.normal_(norm.weight)
    norm.groups = groups
    return norm


def by_torch(x: Tensor, norm: ViewBatchNorm, groups: Groups) -> Tensor:
    """Each group through a plain batch norm in turn, whose statistics move."""
    share, done = len(x) // sum(views for views, _ in groups), []
    for part, (_, adversarial) in zip(x.split([views * share for views, _ in groups]), groups, strict=True):
        own = norm.adversarial if adversarial else norm
        statistics = (own.running_mean, own.running_var)
        done.append(F.batch_norm(part, *statistics, own.weight, own.bias, True, own.momentum))
    return torch.cat(done)


@pytest.mark.filterwarnings("default")  # the compiler has its own
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("groups", GROUPS, ids=str)
@pytest.mark.parametrize("shape", [(5, 5), ()], ids=["images", "vectors"])
def test_each_group_is_normalised_by_itself(shape, groups, compiled):
    """Results, gradients, and the running statistics of both sets."""
    views = sum(count for count, _ in groups)
    x = (torch.randn(views * B, C, *shape, dtype=torch.float64) * 3 + 1).requires_grad_()
    norm, plain = layer(groups), layer()
    plain.load_state_dict(norm.state_dict())
    torch.compiler.reset()
    y = (torch.compile(norm, backend="eager", fullgraph=True) if compiled else norm)(x)
    expected, weights = by_torch(x, plain, groups), torch.randn_like(x)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(*[torch.autograd.grad((one * weights).sum(), x) for one in (y, expected)])
    torch.testing.assert_close(dict(norm.named_buffers()), dict(plain.named_buffers()))


@pytest.mark.parametrize("deviations", [10, 3000])
def test_the_form_for_the_compiler_computes_small_variances_around_a_large_mean(deviations):
    norm = layer().float()
    x = torch.randn(64, C, 8, 8) + deviations
    expected = F.batch_norm(x.double(), None, None, norm.weight.double(), norm.bias.double(), True).float()
    torch.testing.assert_close(batchnorm.all_groups(x, [norm]), expected, rtol=1e-3, atol=1e-3)


def test_eval_mode_is_plain_batch_norm_with_the_layers_of_the_first_view():
    net = convert(nn.Sequential(nn.BatchNorm2d(C))).eval()
    x = torch.randn(6, C, 5, 5)
    net[0].adversarial.running_mean.fill_(5)
    with stacked(net, (CLEAN, CLEAN)):
        torch.testing.assert_close(net(x), nn.BatchNorm2d(C).eval()(x))
    with stacked(net, [ADVERSARIAL]):
        torch.testing.assert_close(net(x + 5), nn.BatchNorm2d(C).eval()(x))


def test_the_original_network_loads_the_clean_layers_of_a_converted_one():
    before = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    net, x = convert(deepcopy(before)), torch.randn(8, 3, 5, 5)
    net(x)  # moves the statistics
    keys = before.load_state_dict(net.state_dict(), strict=False)
    assert not keys.missing_keys
    assert all("adversarial" in key for key in keys.unexpected_keys)
    torch.testing.assert_close(before.eval()(x), net.eval()(x))


def test_convert_replaces_every_batch_norm_once():
    class Double(nn.BatchNorm2d):
        def __init__(self) -> None:
            super().__init__(4)
            self.auxiliary = nn.BatchNorm2d(4, momentum=None)  # goes with it; it could not be converted

    shared = nn.BatchNorm2d(4)
    net = nn.Sequential(shared, Double(), shared, nn.Sequential(shared, nn.BatchNorm1d(4)))
    assert convert(net) is net
    assert all(isinstance(norm, ViewBatchNorm) for norm in (net[0], net[1], net[3][1]))
    assert net[0] is net[2] is net[3][0] is not net[3][1]
    before = list(net.modules())
    assert list(convert(net).modules()) == before  # nor are they, or those inside them, converted again
    remove_norms(bare := nn.Sequential(nn.BatchNorm2d(4)))
    assert isinstance(bare[0], nn.Identity)


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm])
def test_convert_keeps_a_trained_layers_parameters_and_statistics(kind):
    old = kind(C, momentum=0.3, eps=0.02, dtype=torch.float64).eval()
    for value in (*old.parameters(), old.running_mean, old.running_var):
        nn.init.uniform_(value.data, 1, 2)
    old.bias.requires_grad_(False)
    new = convert(nn.Sequential(old))[0]
    assert isinstance(new, ViewBatchNorm)
    assert (new.normalize is batchnorm.over_ranks) == (kind is nn.SyncBatchNorm)
    assert not new.training
    assert (new.momentum, new.eps) == (0.3, 0.02)
    for one in (new, new.adversarial):
        assert one.weight.requires_grad
        assert not one.bias.requires_grad
        for name, value in old.state_dict().items():
            torch.testing.assert_close(one.state_dict()[name], value)


def test_convert_keeps_timms_dropout_and_activation_and_adds_no_parameters():
    layers = pytest.importorskip("timm.layers")
    x, plain = torch.randn(B, C, 2, 2), nn.BatchNorm2d(C, affine=False)
    for old in (layers.BatchNormAct2d(C, drop_layer=nn.Dropout), plain):
        found = []
        for module in (deepcopy(old), net := convert(nn.Sequential(deepcopy(old)))):
            torch.manual_seed(0)
            found.append(module(x))
        torch.testing.assert_close(*found)
        assert ((found[0] == 0).float().mean() > 0.6) == (old is not plain), "either sets some to zero"
    assert not [p for p in net.parameters() if p.requires_grad]


test_norms_that_cannot_be_converted_are_refused = refused(
    convert,
    # torch counts the batches then, or takes the batch's statistics in eval mode too; ours does neither
    (nn.Sequential(nn.BatchNorm2d(4, momentum=None)), r"momentum=None.*: give it a momentum"),
    (nn.Sequential(nn.BatchNorm2d(4, track_running_stats=False)), r"track_running_stats=False: give it"),
    (nn.BatchNorm2d(4), "Sequential"),
)


def test_adversarial_views_do_not_change_clean_statistics_even_after_an_error():
    norm = (net := convert(nn.Sequential(nn.BatchNorm2d(C))))[0]
    x = torch.randn(B, C, 2, 2) + 5
    with stacked(net, [CLEAN, CLEAN]):
        with stacked(net, [ADVERSARIAL]):
            net(x)
        assert (norm.running_mean == 0).all()
        assert (norm.adversarial.running_mean != 0).all()
        assert norm.groups == (CLEAN, CLEAN)
    with pytest.raises(InputError), stacked(net, [ADVERSARIAL]):
        net(torch.randn(1, C, 1, 1))
    net(x)
    assert (norm.running_mean != 0).all()


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm])
def test_adversarial_views_are_refused_if_they_would_change_clean_statistics(norm):
    net = nn.Sequential(nn.Sequential(norm(C)), nn.BatchNorm2d(C))
    convert(net[1:])
    message = rf"layer '0\.0' is a {norm.__name__}.*call intnacl\..*\.convert"
    with pytest.raises(InputError, match=message), stacked(net, [CLEAN, ADVERSARIAL]):
        pass
    for harmless in (net.eval(), nn.Linear(2, 2), nn.BatchNorm2d(C, track_running_stats=False)):
        with stacked(harmless, [ADVERSARIAL]):
            pass


def test_torchs_update_bn_recomputes_the_statistics():
    """As after averaging weights: `update_bn` sets the momentum to None, for the mean over all batches."""
    ours, plain = layer().float(), nn.BatchNorm2d(C)
    ours.kernel = lambda *_, **__: pytest.fail("kernels do not know that mean")
    batches = [5 * torch.randn(8, C, 2, 2) + 7 for _ in range(4)]
    for norm in (ours, plain):
        torch.optim.swa_utils.update_bn(batches, nn.Sequential(norm))
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(ours, name), getattr(plain, name))
    assert ours.running_var.min() > 10


@pytest.mark.filterwarnings("default")  # the compiler has its own
@pytest.mark.parametrize("compiled", [False, True])
def test_one_value_per_group_and_channel_is_refused_with_the_remedy(compiled):
    """Two views of one image, each with statistics of its own, would get NaN."""
    norm = layer((CLEAN, CLEAN), adversarial=False)
    forward = torch.compile(norm, backend="eager") if compiled else norm
    x = torch.rand(2, C, 1, 1, dtype=torch.float64)
    for groups, views in (((CLEAN, CLEAN), x), ((CLEAN,), x[:1]), ((CLEAN, CLEAN), x[:, :, 0, 0])):
        norm.groups = groups
        must_refuse(forward, views, r"one value per channel.*batch-size")
    norm.groups = ((2, False),)
    assert forward(x).isfinite().all(), "one group of two views has a variance"
    assert norm.eval()(x[:1]).isfinite().all()
