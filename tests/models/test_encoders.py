"""Encoders: heads, norms and seeds, and timm models on small images."""

import math
import sys
from pathlib import Path

import pytest
import torch
from timm.layers.patch_embed import resample_patch_embed
from torch import nn

from intnacl.errors import InputError
from intnacl.models.batchnorm import ViewBatchNorm, stacked
from intnacl.models.encoders import ContrastiveModel, EncoderConfig, build_model, own_normalisation
from intnacl.models.weights import save_encoder
from intnacl.runs.opened import from_pretrained
from mistakes import must_refuse, refused


def model(
    adversarial: bool = False, seed: int = 0, image_size: int = 8, **settings: object
) -> ContrastiveModel:
    config = EncoderConfig(**{"name": "small"} | settings)
    return build_model(config, image_size=image_size, adversarial=adversarial, seed=seed)


def test_pixels_are_normalised_inside():
    encoder = model(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)).encoder.eval()
    x, rgb = torch.rand(2, 3, 8, 8), torch.arange(3).view(3, 1, 1)
    torch.testing.assert_close(encoder(x), encoder.backbone((x - (rgb + 1) / 10) / ((rgb + 4) / 10)))
    assert not {"mean", "std"} & encoder.state_dict().keys()


test_images_that_are_no_batch_of_pixels_are_refused = refused(
    lambda x: model().encoder(x),
    (torch.rand(2, 3, 8, 8).byte(), r"x has dtype torch\.uint8; .*: divide uint8 images by 255\."),
    (torch.rand(3, 8, 8), r"x has shape \(3, 8, 8\); .*: x\[None\] is a batch of one image\."),
)


def test_heads_and_initialisations():
    """He initialisation equals torchvision's."""
    paper, hcl = model(name="resnet18"), model(name="resnet18", head="hcl", init="he")
    assert [tuple(p.shape) for p in paper.head.parameters()] == [(512, 512), (512,), (64, 512), (64,)]
    assert [type(layer).__name__ for layer in hcl.head] == ["Linear", "ViewBatchNorm", "ReLU", "Linear"]
    assert hcl.head[0].bias is None
    assert hcl.head(torch.rand(4, 512)).shape == (4, 128)
    deep, two = model(name="resnet18", head="bn-32-16-8").head, model(name="resnet18", head="1024-128").head
    assert [(layer.in_features, layer.out_features) for layer in deep[::3]] == [(512, 32), (32, 16), (16, 8)]
    assert [type(layer).__name__ for layer in deep[1:3]] == ["ViewBatchNorm", "ReLU"]
    assert [tuple(p.shape) for p in two.parameters()] == [(1024, 512), (1024,), (128, 1024), (128,)]
    assert len(model(head="64").head) == 1
    default, he = (net.encoder.backbone.layer3[0].conv2.weight for net in (paper, hcl))
    assert default.abs().max() <= (1 / (256 * 9)) ** 0.5
    assert he.std().item() == pytest.approx((2 / (256 * 9)) ** 0.5, rel=0.01)


def test_weights_are_a_function_of_the_seed_alone():
    """An adversarial set of norms does not change the others either."""
    state = torch.get_rng_state()
    first = model(seed=3).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    second, other = model(seed=3, adversarial=True).state_dict(), model(seed=4).state_dict()
    assert all(torch.equal(first[k], second[k]) for k in first)
    assert {k for k in second if ".adversarial." in k} == second.keys() - first.keys() != set()
    assert not torch.equal(first["head.0.weight"], other["head.0.weight"])


def test_views_share_their_statistics_or_have_their_own_but_adversarial_ones_stay_apart():
    joint, apart = model(norm="joint", adversarial=True).train(), model(adversarial=True).train()
    views = torch.rand(15, 3, 8, 8)
    with stacked(joint, joint.groups(2, 1)), stacked(apart, apart.groups(2, 1)):
        together, own = joint(views), apart(views)
    torch.testing.assert_close(together[:10], model(norm="joint").train()(views[:10]))
    torch.testing.assert_close(own[:10], torch.cat([apart(view) for view in views[:10].chunk(2)]))
    assert not torch.allclose(together[:10], own[:10])
    with stacked(apart, [(1, True)]):
        torch.testing.assert_close(own[10:], apart(views[10:]))
    torch.testing.assert_close(together[10:], own[10:])


def test_each_set_of_norms_has_its_own_momentum_and_norms_can_be_left_out():
    layers = model(adversarial=True, adversarial_momentum=0.2).modules()
    norms = [layer for layer in layers if isinstance(layer, ViewBatchNorm)]
    assert {(norm.momentum, norm.adversarial.momentum) for norm in norms} == {(0.1, 0.2)}
    net, x = model(norm="none", head="hcl"), torch.rand(4, 3, 8, 8)
    assert not any(isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) for m in net.modules())
    torch.testing.assert_close(net(x)[:2], net(x[:2]))


TIMM = "resnet18 efficientnet_b0 mobilenetv3_small_050 vit_tiny_patch16_224 mixer_s16_224 convnext_atto"


@pytest.mark.parametrize("name", TIMM.split())
def test_timm_models_by_name(name):
    net = model(name=f"timm:{name}", image_size=32, adversarial=True).train()
    with stacked(net, net.groups(2, 1)):
        assert net(torch.rand(6, 3, 32, 32)).shape == (6, 64)
    assert net.eval().encoder(torch.rand(2, 3, 32, 32)).shape == (2, net.encoder.feature_dim)


def test_timm_networks_equal_timms_except_for_the_stem_on_small_images():
    """timm writes batch norm and activation as one layer, and starts each block's last scale at zero."""
    import timm

    theirs = timm.create_model("tf_efficientnet_b0", num_classes=0)
    ours = model(name="timm:tf_efficientnet_b0", image_size=96).encoder.backbone
    ours.load_state_dict(theirs.state_dict())
    x = torch.rand(2, 3, 96, 96)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))
    small, large = (model(name="timm:resnet18", image_size=side).encoder.backbone for side in (32, 96))
    assert small.layer1[0].bn2.weight.abs().max() == 0
    assert (small.conv1.stride, small.conv1.kernel_size) == ((1, 1), (3, 3))
    assert isinstance(small.maxpool, nn.Identity)
    assert large.conv1.stride == (2, 2)


def weights_of(name: str, path: Path) -> nn.Module:
    """A random timm model, with its weights written to a file as timm's training script does."""
    import timm

    made: nn.Module = timm.create_model(name)
    torch.save({"state_dict": made.state_dict()}, path)
    made.reset_classifier(0)  # type: ignore[operator]
    return made.eval()


def test_pretrained_weights_come_from_a_file(tmp_path):
    theirs = weights_of("resnet10t", tmp_path / "weights.pth")
    mean, std = own_normalisation("timm:resnet10t")
    assert mean == (0.485, 0.456, 0.406)
    settings = {"name": "timm:resnet10t", "mean": mean, "std": std, "seed": 5}
    encoder = model(pretrained=str(tmp_path / "weights.pth"), image_size=96, **settings).encoder.eval()
    x = torch.rand(2, 3, 96, 96)
    by_hand = (x - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    torch.testing.assert_close(encoder(x), theirs(by_hand))


def test_a_pretrained_transformer_equals_timms_and_loads_without_its_original_file(tmp_path):
    theirs = weights_of("vit_tiny_patch16_224", tmp_path / "weights.pth")
    config = EncoderConfig(name="timm:vit_tiny_patch16_224", pretrained=str(tmp_path / "weights.pth"))
    encoder = build_model(config, image_size=224, adversarial=False, seed=0).encoder.eval()
    save_encoder(encoder, config, 224, tmp_path / "encoder.safetensors")
    (tmp_path / "weights.pth").unlink()
    x = torch.rand(1, 3, 224, 224)
    torch.testing.assert_close(encoder(x), theirs(2 * x - 1))
    torch.testing.assert_close(from_pretrained(tmp_path / "encoder.safetensors")(x), encoder(x))


@pytest.mark.parametrize(
    ("name", "stem", "kept"),
    [
        ("resnet18", "conv1", "layer4.1.conv2.weight"),
        ("vit_tiny_patch16_224", "patch_embed.proj", "blocks.11.mlp.fc2.weight"),
    ],
)
def test_pretrained_weights_fit_small_images(name, stem, kept, tmp_path):
    theirs = weights_of(name, tmp_path / "weights.pth")
    settings = {"name": f"timm:{name}", "image_size": 32, "pretrained": str(tmp_path / "weights.pth")}
    ours = model(**settings).encoder.backbone
    assert torch.equal(ours.get_parameter(kept), theirs.get_parameter(kept))
    small, large = (net.get_parameter(f"{stem}.weight") for net in (ours, theirs))
    assert small.shape[2] < large.shape[2]
    torch.testing.assert_close(small, resample_patch_embed(large, list(small.shape[2:])))


def test_unavailable_weights_are_named(tmp_path):
    settings = {"name": "timm:resnet10t", "image_size": 96}
    path = tmp_path / "weights.pth"
    must_refuse(model, f"encoder.pretrained='{path}' is not a file", pretrained=str(path), **settings)
    weights_of("resnet18", path)
    with pytest.raises(InputError, match=r"does not hold weights that fit 'timm:resnet10t' .*state_dict"):
        model(pretrained=str(path), **settings)
    torch.save({}, path)
    must_refuse(model, r"that fit 'timm:resnet10t' \(it holds none\)", pretrained=str(path), **settings)


def test_without_timm_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)  # importing it then fails
    must_refuse(model, r"pip install '/.*\[timm\]'", name="timm:resnet18")


test_a_timm_model_that_is_unknown_or_cannot_take_the_images_is_named = refused(
    lambda name, image_size: model(name=f"timm:{name}", image_size=image_size),
    ("resnet81", 8, "did you mean 'resnet18'"),
    ("repvgg_a0", 32, "'timm:repvgg_a0' cannot take 32×32 images"),  # fails when it runs
    ("nest_tiny", 8, "'timm:nest_tiny' cannot take 8×8 images"),  # when it is built,
)


test_bad_settings_are_named = refused(
    lambda settings: EncoderConfig(**settings),
    ({"name": "resnet81"}, "did you mean 'resnet18'"),
    ({"head": "papr"}, "did you mean 'paper'"),
    ({"head": "512-0"}, "head='512-0' is unknown.* widths such as 1024-128 or bn-2048-128"),
    ({"init": "xavier"}, "default, he"),
    ({"norm": "batch"}, "joint, none, per_view"),
    ({"pretrained": True}, "is for encoders of timm, not for 'resnet18'"),
    ({"name": "timm:resnet18", "pretrained": True, "init": "he"}, "would overwrite what"),
    ({"std": (0.5, 0.0, 0.5)}, "must be three numbers above 0"),
    ({"std": (0.5, math.nan, 0.5)}, "must be three numbers above 0"),
    ({"adversarial_momentum": 10.0}, "adversarial_momentum=10.0 must be from 0 to 1"),
)
