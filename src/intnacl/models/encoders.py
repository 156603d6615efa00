"""Encoders: pixels in [0, 1] to features, and the projection head that training puts on top.

Normalisation lives inside, so that attacks act on pixels. Every batch norm is a `ViewBatchNorm`: it can keep
the views of a step apart and hold a second set of layers for adversarial views.

Shapes: B images, V views of them, F features, D embedding size.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from intnacl.errors import (
    InputError,
    Settings,
    check_choice,
    check_floats,
    missing_extra,
    must,
    one_of,
    setting,
)
from intnacl.models.batchnorm import Group, convert, remove_norms
from intnacl.models.resnets import RESNETS, ResNet, SmallNet

SMALL = 64  # images up to this side get another stem in timm's models


def _check_name(argument: str, name: str) -> None:
    if not name.startswith("timm:"):
        check_choice(argument, name, [*RESNETS, "small", "timm:NAME"])


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Settings):
    """Encoder, head and batch norm."""

    name: str = setting("resnet18", _check_name, called="encoder name")
    """resnet18, resnet34, resnet50 (CIFAR stem), small (8×8 digits), or timm:NAME."""
    head: str = setting("paper", one_of("paper", "hcl"))
    """"paper": F–F–64 without batch norm, CLAE's; "hcl": F–512–128 with, which the recipe `paper` takes."""
    init: str = setting("default", one_of("default", "he"))
    """"default": PyTorch's; "he": He-normal convolutions, as torchvision's ResNets have."""
    norm: str = setting("per_view", one_of("per_view", "joint", "none"))
    """"per_view": each view has its own statistics; "joint": all clean views share theirs; "none"."""
    adversarial_momentum: float = setting(0.01, must(lambda v: 0 <= v <= 1, "from 0 to 1"))
    """Momentum of the running statistics of the adversarial batch norm."""
    sync: bool = False
    """Take the statistics of batch norm over all ranks."""
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    """Pixels enter the network as (x − mean) / std."""
    std: tuple[float, float, float] = setting(
        (0.5, 0.5, 0.5), must(lambda std: all(0 < v < math.inf for v in std), "three numbers above 0")
    )
    """See `encoder.mean`."""


class Encoder(nn.Module):
    """Pixels (B, 3, H, W) in [0, 1] -> features (B, F)."""

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: nn.Module, config: EncoderConfig) -> None:
        super().__init__()
        self.backbone = backbone
        self.feature_dim = int(backbone.num_features)  # type: ignore[arg-type]
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(getattr(config, name)).view(3, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Features of pixels."""
        check_floats("encoders take", x)
        if x.ndim != 4:
            raise InputError(
                f"x has shape {tuple(x.shape)}; encoders take (N, 3, H, W): x[None] is a batch of one image."
            )
        features: Tensor = self.backbone((x - self.mean) / self.std)
        return features


class ContrastiveModel(nn.Module):
    """An encoder under a projection head: V·B stacked images -> embeddings (V·B, D)."""

    def __init__(self, config: EncoderConfig, *, image_size: int = 32, adversarial: bool = False) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(_backbone(config, image_size), config)
        self.head = HEADS[config.head](self.encoder.feature_dim)
        if config.init == "he":
            self.apply(_he_normal)
        if config.norm == "none":
            remove_norms(self)
        else:
            convert(self, adversarial=adversarial, momentum=config.adversarial_momentum, sync=config.sync)

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings, not normalised: the loss does that."""
        z: Tensor = self.head(self.encoder(x))
        return z

    def groups(self, clean: int, adversarial: int = 0) -> list[Group]:
        """Return which views share statistics in a batch of so many clean, then adversarial ones."""
        joint = self.config.norm == "joint"
        return ([(clean, False)] if joint else [(1, False)] * clean) + [(1, True)] * adversarial


def build_model(config: EncoderConfig, *, image_size: int, adversarial: bool, seed: int) -> ContrastiveModel:
    """Build a model whose weights are a function of the seed; the caller's random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ContrastiveModel(config, image_size=image_size, adversarial=adversarial)


def _paper_head(features: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, 64))


def _hcl_head(features: int) -> nn.Sequential:
    hidden = nn.Linear(features, 512, bias=False)
    return nn.Sequential(hidden, nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 128))


def _he_normal(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _backbone(config: EncoderConfig, image_size: int) -> nn.Module:
    if config.name.startswith("timm:"):
        return _timm_backbone(config.name.removeprefix("timm:"), image_size)
    if config.name == "small":
        return SmallNet()
    block, depths = RESNETS[config.name]
    return ResNet(block, depths)


def _timm_backbone(name: str, image_size: int) -> nn.Module:
    """Return any timm model without its classifier, its stem adapted to images of up to 64 pixels."""
    try:
        import timm
    except ImportError:
        raise missing_extra("timm", "timm", f"encoder 'timm:{name}'") from None
    if name not in timm.list_models():
        check_choice("timm model", name, timm.list_models(f"*{name[:3]}*") or timm.list_models("resnet*"))
    options = timm_options(name, image_size)
    try:
        model: nn.Module = timm.create_model(name, pretrained=False, num_classes=0, **options)
        if image_size <= SMALL and not options:
            _adapt_stem(model)
        with torch.no_grad():  # some models return features of another width than their `num_features`
            features = model.eval()(torch.zeros(1, 3, image_size, image_size))
    except Exception as error:
        raise InputError(
            f"encoder 'timm:{name}' cannot take {image_size}×{image_size} images ({error}): "
            "choose a model that suits them, such as timm:resnet18."
        ) from error
    if features.ndim != 2:
        raise InputError(
            f"encoder 'timm:{name}' returns {tuple(features.shape)}, not one row an image: choose another "
            "model, such as timm:resnet18."
        )
    vars(model)["num_features"] = features.shape[1]
    return model.train()


def timm_options(name: str, image_size: int) -> dict[str, Any]:
    """Return the keywords with which timm builds a model for small images; most need none.

    Vision transformers and models of a fixed size get the image size; convolutional ones get another stem.
    """
    import timm

    if name.startswith(("vit_", "deit", "beit", "eva")):
        return {"img_size": image_size, "patch_size": max(2, image_size // 8)}
    fixed = getattr(timm.get_pretrained_cfg(name), "fixed_input_size", False)
    return {"img_size": image_size} if fixed else {}


def _adapt_stem(model: nn.Module) -> None:
    """Give the first convolution stride 1 (and at most 3×3), and drop the `maxpool` of ResNets."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            kernel = min(3, module.kernel_size[0])
            stem = nn.Conv2d(
                module.in_channels, module.out_channels, kernel, 1, kernel // 2, bias=module.bias is not None
            )
            model.set_submodule(name, stem)
            break
    if isinstance(getattr(model, "maxpool", None), nn.Module):
        model.maxpool = nn.Identity()


HEADS = {"paper": _paper_head, "hcl": _hcl_head}
