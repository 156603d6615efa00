"""Encoders: heads, norms and seeds do what they say, and timm models fit small images."""

import math
import sys

import pytest
import torch
from torch import nn

from intnacl.errors import InputError
from intnacl.models.batchnorm import ViewBatchNorm, stacked
from intnacl.models.encoders import ContrastiveModel, EncoderConfig, build_model


def model(
    adversarial: bool = False, seed: int = 0, image_size: int = 8, **settings: object
) -> ContrastiveModel:
    config = EncoderConfig(**{"name": "small"} | settings)
    return build_model(config, image_size=image_size, adversarial=adversarial, seed=seed)


def test_pixels_are_normalised_inside() -> None:
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    encoder = model(mean=mean, std=std).encoder.eval()
    x = torch.rand(2, 3, 8, 8)
    by_hand = (x - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    torch.testing.assert_close(encoder(x), encoder.backbone(by_hand))
    assert not {"mean", "std"} & encoder.state_dict().keys()


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), r"dtype torch\.uint8; .*: divide uint8 images by 255\."),
        (torch.rand(3, 8, 8), r"shape \(3, 8, 8\); .*: x\[None\] is a batch of one image\."),
    ],
)
def test_images_that_are_no_batch_of_pixels_are_refused(x: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=f"x has {message}"):
        model().encoder(x)


def test_heads() -> None:
    paper, hcl = model(name="resnet18").head, model(name="resnet18", head="hcl").head
    assert [tuple(p.shape) for p in paper.parameters()] == [(512, 512), (512,), (64, 512), (64,)]
    assert [type(layer).__name__ for layer in hcl] == ["Linear", "ViewBatchNorm", "ReLU", "Linear"]
    assert hcl[0].bias is None
    assert hcl(torch.rand(4, 512)).shape == (4, 128)


def test_weights_are_a_function_of_the_seed_alone() -> None:
    state = torch.get_rng_state()
    first = model(seed=3).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    second, other = model(seed=3).state_dict(), model(seed=4).state_dict()
    assert all(torch.equal(first[k], second[k]) for k in first)
    assert not torch.equal(first["head.0.weight"], other["head.0.weight"])


def test_an_adversarial_set_of_norms_does_not_change_the_other_weights() -> None:
    plain, both = model(seed=1).state_dict(), model(seed=1, adversarial=True).state_dict()
    assert all(torch.equal(plain[k], both[k]) for k in plain)
    assert {k for k in both if ".adversarial." in k} == both.keys() - plain.keys()


def test_he_initialisation_is_torchvisions() -> None:
    weight = model(name="resnet18", init="he").encoder.backbone.layer3[0].conv2.weight
    assert weight.std().item() == pytest.approx((2 / (256 * 9)) ** 0.5, rel=0.01)
    default = model(name="resnet18").encoder.backbone.layer3[0].conv2.weight
    assert default.abs().max() <= (1 / (256 * 9)) ** 0.5


def test_per_view_equals_passes_of_their_own() -> None:
    net = model(adversarial=True).train()
    a, b, attacked = torch.rand(3, 5, 3, 8, 8)
    with stacked(net, net.groups(2, 1)):
        together = net(torch.cat([a, b, attacked])).chunk(3)
    torch.testing.assert_close(together[0], net(a))
    torch.testing.assert_close(together[1], net(b))
    with stacked(net, [(1, True)]):
        torch.testing.assert_close(together[2], net(attacked))


def test_joint_views_share_their_statistics_but_adversarial_ones_stay_apart() -> None:
    joint, apart = model(norm="joint", adversarial=True).train(), model(adversarial=True).train()
    views = torch.rand(15, 3, 8, 8)
    with stacked(joint, joint.groups(2, 1)), stacked(apart, apart.groups(2, 1)):
        together, other = joint(views), apart(views)
    torch.testing.assert_close(together[:10], model(norm="joint").train()(views[:10]))
    assert not torch.allclose(together[:10], other[:10])
    torch.testing.assert_close(together[10:], other[10:])


def test_norm_none_has_no_batch_norm() -> None:
    net = model(norm="none", head="hcl")
    assert not any(isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) for m in net.modules())
    x = torch.rand(4, 3, 8, 8)
    torch.testing.assert_close(net(x)[:2], net(x[:2]))


def test_momentum_of_the_adversarial_set() -> None:
    layers = model(adversarial=True, adversarial_momentum=0.2).modules()
    norms = [layer for layer in layers if isinstance(layer, ViewBatchNorm)]
    assert {(norm.momentum, norm.adversarial.momentum) for norm in norms} == {(0.1, 0.2)}


TIMM = "resnet18 efficientnet_b0 mobilenetv3_small_050 vit_tiny_patch16_224 mixer_s16_224 convnext_atto"


@pytest.mark.parametrize("name", TIMM.split())
def test_timm_models_by_name(name: str) -> None:
    net = model(name=f"timm:{name}", image_size=32, adversarial=True).train()
    with stacked(net, net.groups(2, 1)):
        assert net(torch.rand(6, 3, 32, 32)).shape == (6, 64)
    assert net.eval().encoder(torch.rand(2, 3, 32, 32)).shape == (2, net.encoder.feature_dim)


def test_timms_stem_is_adapted_to_small_images() -> None:
    backbone = model(name="timm:resnet18", image_size=32).encoder.backbone
    assert backbone.conv1.stride == (1, 1)
    assert backbone.conv1.kernel_size == (3, 3)
    assert isinstance(backbone.maxpool, nn.Identity)
    assert model(name="timm:resnet18", image_size=96).encoder.backbone.conv1.stride == (2, 2)


def test_timms_batch_norms_keep_activation_epsilon_and_initial_weights() -> None:
    """timm writes batch norm and activation as one layer, and starts each block's last scale at zero."""
    import timm

    theirs = timm.create_model("tf_efficientnet_b0", num_classes=0)
    ours = model(name="timm:tf_efficientnet_b0", image_size=96).encoder.backbone
    ours.load_state_dict(theirs.state_dict())
    x = torch.rand(2, 3, 96, 96)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))
    assert model(name="timm:resnet18").encoder.backbone.layer1[0].bn2.weight.abs().max() == 0


def test_without_timm_the_message_tells_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)  # importing it then fails
    with pytest.raises(InputError, match=r"pip install '/.*\[timm\]'"):
        model(name="timm:resnet18")


@pytest.mark.parametrize(
    ("name", "image_size", "message"),
    [
        ("resnet81", 8, "did you mean 'resnet18'"),
        ("repvgg_a0", 32, "'timm:repvgg_a0' cannot take 32×32 images"),  # fails when it runs
        ("nest_tiny", 8, "'timm:nest_tiny' cannot take 8×8 images"),  # when it is built
    ],
)
def test_a_timm_model_that_is_unknown_or_cannot_take_the_images_is_named(
    name: str, image_size: int, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        model(name=f"timm:{name}", image_size=image_size)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "resnet81"}, "did you mean 'resnet18'"),
        ({"head": "papr"}, "did you mean 'paper'"),
        ({"init": "xavier"}, "default, he"),
        ({"norm": "batch"}, "joint, none, per_view"),
        ({"std": (0.5, 0.0, 0.5)}, "must be three numbers above 0"),
        ({"std": (0.5, math.nan, 0.5)}, "must be three numbers above 0"),
        ({"adversarial_momentum": 10.0}, "adversarial_momentum=10.0 must be from 0 to 1"),
    ],
)
def test_bad_settings_are_named(settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        EncoderConfig(**settings)
