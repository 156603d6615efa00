"""The whole family as one module: L_IntNaCl = L_NaCl(G¹, M, λ) + α L_Robust(G², w), Eq. 9.

Shapes: B images on this process, D embedding size, R = 2B rows of a pair of views, E = M − 1 extra positives.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from numbers import Integral, Real
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from intnacl.errors import Check, InputError, Settings, check_choice, must, one_of, setting
from intnacl.losses.gather import Embedding, embed, world_size
from intnacl.losses.nacl import base_rows, mix_rows, nca_rows
from intnacl.losses.negatives import Estimator, Pair, compare, estimator
from intnacl.losses.robust import adversarial_weight, robust_rows
from intnacl.losses.similarity import normalize, paired_similarity

# The paper's Table 1, a row each; every other setting is the constructor's default.
PRESETS: dict[str, dict[str, Any]] = {
    "simclr": {},
    "debiased": {"negatives": "g1"},
    "hardneg": {"negatives": "g2", "tau_plus": 0.0},
    "debiased_hardneg": {"negatives": "g2"},
    "adv": {"alpha": 1.0, "weight": "one"},
    "intcl": {"negatives": "g2", "alpha": 1.0},
    "intnacl": {"nacl": "mixnca", "negatives": "g2", "num_positives": 5, "lam": 0.5, "alpha": 1.0},
}
ESTIMATORS = ("g0", "g1", "g2")

MAKERS = {  # where a view comes from, for the error about a missing one
    "extra": "each embeds a further augmented view",
    "mixed": "each embeds intnacl.data.views.mix(x0, lam, shift), with shift 1, 2, …",
    "adversarial": "it embeds intnacl.attacks.adversarial_view(encoder, x0, eps)",
}


def _number(hold: Callable[[float], bool], demand: str) -> Check:
    """A check of a finite number; a tensor is refused, since its gradient would be lost in part."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, Real):
            raise InputError(f"{name}={value!r} is of type {type(value).__name__}: give a plain number.")
        if not (math.isfinite(value) and hold(float(value))):
            raise InputError(f"{name}={value!r} is out of range: it must be {demand}.")

    return check


@dataclass(frozen=True, kw_only=True)
class LossConfig(Settings):
    """The keywords of `IntNaClLoss`; the defaults are SimCLR."""

    nacl: str = setting("nca", one_of("nca", "mixnca"))
    """"nca": M views of an image are its positives; "mixnca": M − 1 mixed views are positives in part."""
    negatives: str = setting("g0", one_of(*ESTIMATORS))
    """The estimator G¹: "g0" plain mean, "g1" debiased, "g2" debiased and weighted towards hard negatives."""
    num_positives: int = setting(
        1, must(lambda m: isinstance(m, Integral) and int(m) >= 1, "a whole number, 1 or more"), flag=True
    )
    """M, the number of positives; a step needs M − 1 extra views (nca) or mixed views (mixnca)."""
    lam: float = setting(0.5, _number(lambda v: 0 <= v <= 1, "from 0 to 1"), flag=True)
    """λ, the share of the image itself in a mixed view (mixnca)."""
    alpha: float = setting(0.0, _number(lambda v: v >= 0, "0 or more"), flag=True)
    """α, the weight of the robust term; 0 leaves it out, and no adversarial view is needed."""
    robust_negatives: str | None = setting(None, one_of(*ESTIMATORS))
    """The estimator G² of the robust term; None: the same as `negatives`."""
    weight: str = setting("loss", one_of("loss", "relative", "one"))
    """w of the robust term: "loss" = ŵ(x), the clean loss of the same row; "relative" = ŵ(x) divided by its
    mean over the batch, a constant; "one" = 1."""
    temperature: float = setting(
        0.5,
        _number(lambda v: v >= 1e-30, "above 0, by 1e-30 at least"),  # 1/t fits into a float32
    )
    """t, by which similarities are divided."""
    tau_plus: float = setting(0.01, _number(lambda v: 0 <= v < 1, "from 0 to below 1"))
    """τ⁺, the assumed share of positives among the negatives (g1, g2)."""
    beta: float = setting(1.0, _number(lambda v: v >= 0, "0 or more"))
    """β, how strongly hard negatives are weighted (g2)."""
    detach_weight: bool = False
    """Whether w = ŵ(x) is a constant in the gradient, as "relative" always is."""
    denominator: str = setting("N", one_of("N", "MN"))
    """"N": S + N·G as in the paper's main text; "MN": S + M·N·G as in its Appendix B (nca)."""
    mix_negatives: str = setting("pair", one_of("pair", "clean"))
    """"pair": a mixed view's negatives are the other rows of (z0, mixed); "clean": those of (z0, z1)."""
    gather: bool = False
    """Whether negatives come from all ranks of torch.distributed; all must have the same number of rows."""


class ViewsNeeded(NamedTuple):
    """How many views of an image a step must embed, by kind."""

    plain: int
    extra: int
    mixed: int
    adversarial: int


class IntNaClLoss(nn.Module):
    """Contrastive loss of the IntNaCl family on embeddings; the keywords are those of `LossConfig`.

    >>> loss = IntNaClLoss.preset("debiased_hardneg", temperature=0.2)
    >>> loss(torch.randn(8, 16), torch.randn(8, 16)).shape
    torch.Size([])

    With `gather=True` a rank returns the mean over its own rows against everyone's negatives; DDP's average
    of the gradients then equals the gradient of one process on the joined batch.
    """

    def __init__(self, **keywords: Any) -> None:
        super().__init__()
        for name in keywords:
            check_choice("keyword", name, (f.name for f in fields(LossConfig)))
        self.config = LossConfig(**keywords)

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> Self:
        """A row of the paper's Table 1 by name, with any keyword overridden."""
        check_choice("preset", name, PRESETS)
        return cls(**PRESETS[name] | overrides)

    @property
    def views_needed(self) -> ViewsNeeded:
        """How many plain, extra, mixed and adversarial views a step must provide."""
        others = self.config.num_positives - 1
        nca = self.config.nacl == "nca"
        return ViewsNeeded(2, others if nca else 0, 0 if nca else others, int(self.config.alpha > 0))

    def forward(
        self,
        z0: Tensor,
        z1: Tensor,
        *,
        extra: Sequence[Tensor] | None = None,
        mixed: Sequence[Tensor] | None = None,
        adversarial: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch, a scalar; every view is (B, D) and is normalised inside."""
        return self.terms(z0, z1, extra=extra, mixed=mixed, adversarial=adversarial)["loss"]

    def terms(
        self,
        z0: Tensor,
        z1: Tensor,
        *,
        extra: Sequence[Tensor] | None = None,
        mixed: Sequence[Tensor] | None = None,
        adversarial: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The loss and its two terms: {"nacl", "robust", "loss"}, where loss = nacl + α·robust."""
        extra, mixed = _listed("extra", extra), _listed("mixed", mixed)
        self._check(z0, z1, extra, mixed, adversarial)
        with torch.autocast(z0.device.type, enabled=False):
            anchor, positive = self._embed(z0), self._embed(z1)
            clean = self._compare(anchor, positive, self.config.negatives)
            nacl = self._nacl(anchor, positive, clean, extra, mixed)
            robust = (
                self._robust(anchor, positive, clean, adversarial) if adversarial is not None else 0 * nacl
            )
            return {"nacl": nacl, "robust": robust, "loss": nacl + self.config.alpha * robust}

    def extra_repr(self) -> str:
        """The settings that differ from SimCLR's."""
        default = asdict(LossConfig())
        return ", ".join(f"{k}={v!r}" for k, v in asdict(self.config).items() if v != default[k])

    def _embed(self, z_BD: Tensor) -> Embedding:
        return embed(normalize(z_BD), self.config.gather)

    def _estimator(self, name: str) -> Estimator:
        return estimator(name, self.config.tau_plus, self.config.beta)

    def _compare(self, first: Embedding, second: Embedding, g: str) -> Pair:
        return compare(first, second, self._estimator(g), self.config.temperature)

    def _nacl(
        self,
        anchor: Embedding,
        positive: Embedding,
        clean: Pair,
        extra: Sequence[Tensor],
        mixed: Sequence[Tensor],
    ) -> Tensor:
        """L_NaCl(G¹, M, λ): both of its forms are the base loss when M = 1."""
        if extra:
            rows_RD = torch.cat([anchor.own_BD, positive.own_BD])
            extras_RE = [
                paired_similarity(rows_RD, normalize(z).repeat(2, 1), self.config.temperature) for z in extra
            ]
            return nca_rows(clean, torch.stack(extras_RE, dim=1), self.config.denominator).mean()
        base = base_rows(clean).mean()
        if not mixed:
            return base
        pairs = [self._mixed_pair(anchor, z, clean) for z in mixed]
        return base + torch.stack([mix_rows(pair, self.config.lam).mean() for pair in pairs]).mean()

    def _mixed_pair(self, anchor: Embedding, mixed_BD: Tensor, clean: Pair) -> Pair:
        if self.config.mix_negatives == "pair":
            return self._compare(anchor, self._embed(mixed_BD), self.config.negatives)
        positive_B = paired_similarity(anchor.own_BD, normalize(mixed_BD), self.config.temperature)
        return Pair(positive_B, clean.negatives_R[: len(mixed_BD)])

    def _robust(self, anchor: Embedding, positive: Embedding, clean: Pair, adversarial_BD: Tensor) -> Tensor:
        """L_Robust(G², w), with ŵ from the clean pair under the same G²."""
        g = self.config.robust_negatives or self.config.negatives
        if self._estimator(g) != self._estimator(self.config.negatives) and self.config.weight != "one":
            clean = self._compare(anchor, positive, g)
        w_R = adversarial_weight(
            clean, self.config.weight, detach=self.config.detach_weight, gather=self.config.gather
        )
        return robust_rows(self._compare(anchor, self._embed(adversarial_BD), g), w_R).mean()

    def _check(
        self,
        z0: Tensor,
        z1: Tensor,
        extra: Sequence[Tensor],
        mixed: Sequence[Tensor],
        adversarial: Tensor | None,
    ) -> None:
        self._check_count("extra", len(extra))
        self._check_count("mixed", len(mixed))
        self._check_count("adversarial", int(adversarial is not None))
        views = {  # not joined by |, which torch 2.6 does not compile
            "z0": z0,
            "z1": z1,
            **{f"extra[{j}]": z for j, z in enumerate(extra)},
            **{f"mixed[{j}]": z for j, z in enumerate(mixed)},
        }
        if adversarial is not None:
            views["adversarial"] = adversarial
        _check_shapes(views)
        if len(z0) * (world_size() if self.config.gather else 1) < 2:
            raise InputError(
                f"z0 has {len(z0)} rows: at least 2 are needed, since the others are its negatives. A "
                "DataLoader with drop_last=True leaves out a small last batch."
            )

    def _check_count(self, name: str, given: int) -> None:
        needed = getattr(self.views_needed, name)
        if given != needed:
            spare = "leave out the others, or change these settings"
            remedy = MAKERS[name] if given < needed else spare
            raise InputError(
                f"{name}: {given} views given, {needed} needed by nacl={self.config.nacl!r}, "
                f"num_positives={self.config.num_positives}, alpha={self.config.alpha}: {remedy}."
            )


def _listed(name: str, views: Sequence[Tensor] | None) -> tuple[Tensor, ...]:
    if views is None:
        return ()
    if isinstance(views, Tensor) and views.ndim == 2:  # its rows would count as views
        raise InputError(f"{name} is one view of shape {tuple(views.shape)}: give a list, [{name}].")
    return tuple(views)


def _check_shapes(views: dict[str, Tensor]) -> None:
    z0 = views["z0"]
    for name, z in views.items():
        if not isinstance(z, Tensor):
            raise InputError(f"{name} is a {type(z).__name__}: expected a tensor of (batch, features).")
        if z.ndim != 2 or not z.is_floating_point():
            raise InputError(
                f"{name} is {z.dtype} of shape {tuple(z.shape)}: expected floats of (batch, features)."
            )
        if z.shape != z0.shape:
            raise InputError(
                f"{name} has shape {tuple(z.shape)}, z0 has {tuple(z0.shape)}: they must be equal."
            )


# Shown by help() and by editors' tooltips.
IntNaClLoss.__signature__ = inspect.signature(LossConfig)  # type: ignore[attr-defined]
