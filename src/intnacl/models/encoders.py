"""Encoders, from pixels in [0, 1] to features, and the projection head that training adds.

Pixels are normalised inside, so that attacks act on pixels. Every batch norm is a `ViewBatchNorm`, which can
keep the views of a step apart and hold a second set of layers for adversarial views.

Shapes: B images, V views of them, F features, D embedding size.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
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
from intnacl.models.resnets import RESNETS, USUAL_WIDTH, ResNet, SmallNet

SMALL = 64  # timm's models get an adapted stem for images up to this side


def _check_name(argument: str, name: str) -> None:
    if not name.startswith("timm:"):
        check_choice(argument, name, [*RESNETS, "small", "timm:NAME"])


def _check_head(argument: str, head: str) -> None:
    if not re.fullmatch(r"(bn-)?[1-9]\d{0,4}(-[1-9]\d{0,4})*", head):
        check_choice(argument, head, ["paper", "hcl", "widths such as 1024-128 or bn-2048-128"])


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Settings):
    """Encoder, head and batch norm."""

    name: str = setting("resnet18", _check_name, called="encoder name")
    """resnet18, resnet34, resnet50, small (8×8 digits), or timm:NAME."""
    width: int = setting(USUAL_WIDTH, must(lambda v: v >= 1, "1 or more"))
    """Channels of the stem of resnet18, 34 and 50, to which those of all stages are proportional."""
    stem: str = setting("cifar", one_of("cifar", "imagenet"))
    """Of ResNets: "cifar", a 3×3 convolution of stride 1; "imagenet", 7×7 of stride 2, then max-pooling."""
    pretrained: bool | str = False
    """For timm:NAME. false: random weights; true: timm's, downloaded from the Hugging Face Hub; PATH: a file
    of weights for timm's model. With pretrained weights, `mean` and `std` default to those of timm's."""
    head: str = setting("paper", _check_head)
    """"paper": F–F–64 without batch norm, as in CLAE; "hcl": F–512–128 with batch norm, as in the recipe
    `paper`; or the widths of the layers, such as 1024-128, or bn-2048-2048-128 with batch norm before each
    ReLU."""
    init: str = setting("default", one_of("default", "he"))
    """"default": PyTorch's; "he": He-normal convolutions, as in torchvision's ResNets."""
    norm: str = setting("per_view", one_of("per_view", "joint", "none"))
    """"per_view": statistics of each view; "joint": of all clean views together; "none": no batch norm."""
    adversarial_momentum: float = setting(0.01, must(lambda v: 0 <= v <= 1, "from 0 to 1"))
    """Momentum of the running statistics of the adversarial batch norm."""
    sync: bool = False
    """Compute the statistics of batch norm over all ranks."""
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    """Pixels enter the network as (x − mean) / std."""
    std: tuple[float, float, float] = setting(
        (0.5, 0.5, 0.5), must(lambda std: all(0 < v < math.inf for v in std), "three numbers above 0")
    )
    """See `encoder.mean`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width != USUAL_WIDTH and self.name not in RESNETS:
            raise InputError(
                f"encoder.width={self.width} is for {', '.join(RESNETS)}, not for {self.name!r}: leave it "
                "out."
            )
        if self.pretrained and not self.name.startswith("timm:"):
            raise InputError(
                f"encoder.pretrained={self.pretrained!r} is for encoders of timm, not for {self.name!r}: "
                "take encoder.name=timm:NAME, such as timm:resnet18."
            )
        if self.pretrained and self.init == "he":
            raise InputError(
                "encoder.init='he' would overwrite what encoder.pretrained loads: leave one of them out."
            )

    @property
    def same_on_any_ranks(self) -> bool:
        """True if W ranks train as one process does, up to rounding: no statistics are per rank."""
        return self.sync or self.norm == "none"


class Encoder(nn.Module):
    """Pixels (B, 3, H, W) in [0, 1] -> features (B, F)."""

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: nn.Module, config: EncoderConfig, image_size: int) -> None:
        super().__init__()
        self.backbone, self.config, self.image_size = backbone, config, image_size
        self.trained_on: str | None = None
        """Checksum of the images it was trained on, if it was loaded from a file that records it."""
        self.record: Callable[[Encoder, str], tuple[str, Mapping[str, object]] | None] | None = None
        """Takes an encoder and the place from which the model card's example loads it; returns the card and
        the run's figures, or None if the encoder has changed since the run. Set on encoders loaded from a
        run's folder."""
        self.feature_dim = int(backbone.num_features)  # type: ignore[arg-type]
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(getattr(config, name)).view(3, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of pixels."""
        check_floats("encoders take", x)
        if x.ndim != 4:
            raise InputError(
                f"x has shape {tuple(x.shape)}; encoders take (N, 3, H, W): x[None] is a batch of one image."
            )
        features: Tensor = self.backbone((x - self.mean) / self.std)
        return features

    def save_pretrained(self, folder: str | Path) -> None:
        """Write weights, configuration and model card in the layout of the Hugging Face Hub.

        `from_pretrained(folder)` loads them. The card has the run's figures if the encoder was loaded from a
        run and has not changed since.
        """
        from intnacl.models.hub import save_pretrained

        save_pretrained(self, folder)

    def push_to_hub(
        self,
        repo: str,
        *,
        message: str = "Upload an encoder trained by intnacl",
        private: bool | None = None,
        revision: str | None = None,
        token: str | None = None,
    ) -> str:
        """Upload what `save_pretrained` writes to a repository of the Hugging Face Hub; return its URL.

        Args:
            repo: "organisation/name"; it is created if it is missing.
            message: the commit message.
            private: whether a new repository is private; None: the organisation's default.
            revision: the branch; None: main.
            token: an access token; None: that of `hf auth login` or $HF_TOKEN.
        """
        from intnacl.models.hub import push

        return push(self, repo, message=message, private=private, revision=revision, token=token)


class ContrastiveModel(nn.Module):
    """An encoder under a projection head: V·B stacked images -> embeddings (V·B, D)."""

    def __init__(
        self, config: EncoderConfig, *, image_size: int = 32, adversarial: bool = False, load: bool = True
    ) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(_backbone(config, image_size, load), config, image_size)
        self.head = build_head(self.encoder.feature_dim, config.head)
        if config.init == "he":
            self.apply(_he_normal)
        if config.norm == "none":
            remove_norms(self)
        else:
            convert(self, adversarial=adversarial, momentum=config.adversarial_momentum, sync=config.sync)

    def forward(self, x: Tensor, *, with_features: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Return embeddings, which the loss normalises; `with_features` also returns detached features."""
        features = self.encoder(x)
        z: Tensor = self.head(features)
        return (z, features.detach()) if with_features else z

    def groups(self, clean: int, adversarial: int = 0) -> list[Group]:
        """Return the groups that share statistics in a batch of `clean`, then `adversarial` views."""
        joint = self.config.norm == "joint"
        return ([(clean, False)] if joint else [(1, False)] * clean) + [(1, True)] * adversarial


def build_model(
    config: EncoderConfig, *, image_size: int, adversarial: bool, seed: int, load: bool = True
) -> ContrastiveModel:
    """Build a model whose weights are a function of the seed; the caller's random state stays as it was.

    `load=False` skips pretrained weights, where others will replace them.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ContrastiveModel(config, image_size=image_size, adversarial=adversarial, load=load)


def build_head(features: int, name: str) -> nn.Sequential:
    """Return a projection head: linear layers with ReLU, in "bn-…" after batch norm, between them."""
    text = {"paper": f"{features}-64", "hcl": "bn-512-128"}.get(name, name)
    norm, widths = text.startswith("bn-"), [int(width) for width in text.removeprefix("bn-").split("-")]
    sizes, layers = [features, *widths], list[nn.Module]()
    for before, width in pairwise(sizes[:-1]):
        layers += [nn.Linear(before, width, bias=not norm), *[nn.BatchNorm1d(width)] * norm, nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


def _he_normal(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _backbone(config: EncoderConfig, image_size: int, load: bool) -> nn.Module:
    if config.name.startswith("timm:"):
        return _timm_backbone(config, image_size, load)
    if config.name == "small":
        return SmallNet()
    block, depths = RESNETS[config.name]
    return ResNet(block, depths, config.width, imagenet_stem=config.stem == "imagenet")


def _check_timm_name(name: str) -> None:
    try:
        import timm
    except ImportError:
        raise missing_extra("timm", "timm", f"encoder 'timm:{name}'") from None
    if name not in timm.list_models():
        check_choice("timm model", name, timm.list_models(f"*{name[:3]}*") or timm.list_models("resnet*"))


def own_normalisation(name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and std that timm's weights of an encoder timm:NAME were trained with."""
    name = name.removeprefix("timm:")
    _check_timm_name(name)
    import timm

    found = timm.get_pretrained_cfg(name)
    assert found is not None
    return tuple(found.mean), tuple(found.std)


def _timm_backbone(config: EncoderConfig, image_size: int, load: bool) -> nn.Module:
    """Return any timm model without its classifier, its stem adapted to images of up to 64 pixels."""
    name = config.name.removeprefix("timm:")
    _check_timm_name(name)
    import timm

    options = timm_options(config, image_size)
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
            f"encoder 'timm:{name}' returns {tuple(features.shape)}, not one row per image: choose another "
            "model, such as timm:resnet18."
        )
    vars(model)["num_features"] = features.shape[1]
    if load and config.pretrained:
        _load_pretrained(model, _pretrained_twin(name, options, config.pretrained))
    return model.train()


def _pretrained_twin(name: str, options: dict[str, Any], pretrained: bool | str) -> nn.Module:
    """Return timm's unchanged model with weights from the Hub, or with exactly those of a file."""
    import timm
    from timm.models import load_state_dict

    config = timm.get_pretrained_cfg(name)
    assert config is not None
    if isinstance(pretrained, bool):
        try:
            return timm.create_model(name, pretrained=True, num_classes=0, **options)
        except Exception as error:  # from the network, the Hub, or a model without weights
            raise InputError(
                f"encoder.pretrained=true: the weights of 'timm:{name}' on the Hugging Face Hub cannot be "
                f"loaded ({(str(error).splitlines() or [''])[0]}). Without a network, copy them to a file, "
                "and give encoder.pretrained=PATH."
            ) from error
    file = Path(pretrained).expanduser()
    if not file.is_file():
        raise InputError(
            f"encoder.pretrained={pretrained!r} is not a file: give the weights of a timm model."
        )
    try:
        state = load_state_dict(str(file), weights_only=True)
        heads = config.classifier or ()
        for head in [heads] if isinstance(heads, str) else heads:
            state = {key: value for key, value in state.items() if not key.startswith(f"{head}.")}
        if not state:  # timm would then download from the Hub
            raise ValueError("it holds none")
        # Without a classifier in its configuration, timm loads strictly: no weight stays random unnoticed.
        source = {"state_dict": state, "classifier": None, "source": None}
        return timm.create_model(
            name, pretrained=True, num_classes=0, pretrained_cfg_overlay=source, **options
        )
    except Exception as error:
        reason = "; ".join(line.strip() for line in str(error).splitlines()[:2])
        raise InputError(
            f"encoder.pretrained={pretrained!r} does not hold weights that fit 'timm:{name}' ({reason})."
        ) from error


def _load_pretrained(model: nn.Module, twin: nn.Module) -> None:
    """Copy the twin's weights to the model, with kernels resampled to the size of its adapted stem."""
    from timm.layers.patch_embed import resample_patch_embed

    wanted, state = model.state_dict(), dict(twin.state_dict())
    for name, value in state.items():
        if value.shape != wanted[name].shape:
            state[name] = resample_patch_embed(value, list(wanted[name].shape[2:]))
    model.load_state_dict(state)


def timm_options(config: EncoderConfig, image_size: int) -> dict[str, Any]:
    """Return the keywords with which timm builds a model for small images; most need none.

    Vision transformers and models of a fixed input size get the image size; the stem of others is adapted.
    Pretrained transformers keep their patch size on images above 64 pixels; others have 8×8 patches.
    """
    import timm

    name = config.name.removeprefix("timm:")
    if name.startswith(("vit_", "deit", "beit", "eva")):
        if config.pretrained and image_size > SMALL:
            return {"img_size": image_size}
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
