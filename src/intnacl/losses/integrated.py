"""The whole family as one module: L_IntNaCl = L_NaCl(G¹, M, λ) + α L_Robust(G², w), Eq. 9.

Shapes: B images on this process, D embedding size, R = 2B rows of a pair of views, E = M − 1 extra positives.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from intnacl.errors import InputError, call, check_choice, check_dense, has_floats
from intnacl.losses.config import (
    PRESETS,
    Denominator,
    LossConfig,
    MixNegatives,
    NaCl,
    Negatives,
    Preset,
    Weight,
)
from intnacl.losses.gather import Embedding, gather_embedding, world_size
from intnacl.losses.nacl import base_rows, mix_rows, nca_rows
from intnacl.losses.negatives import Estimator, Pair, compare, estimator
from intnacl.losses.robust import WeightFunction, adversarial_weight, given_weight, robust_rows
from intnacl.losses.similarity import normalize, paired_similarity

REMEDIES = {  # the remedy for a view that is missing
    "extra": "each embeds a further augmented view",
    "mixed": "each embeds intnacl.data.views.mix(x0, lam, shift), with shift 1, 2, …",
    "adversarial": "it embeds intnacl.attacks.adversarial_view(encoder, x0, eps)",
}


class ViewsNeeded(NamedTuple):
    """Number of views of an image that a step must embed, by kind."""

    plain: int
    extra: int
    mixed: int
    adversarial: int


class IntNaClLoss(nn.Module):
    """Contrastive loss of the IntNaCl family on embeddings; the defaults are SimCLR.

    With `gather=True` a rank returns the mean over its own rows against the negatives of all ranks; DDP's
    average of the gradients then equals the gradient of one process on the joined batch.

    Args:
        nacl: "nca": M views of an image are its positives; "mixnca": M − 1 mixed views are partial positives.
        negatives: The estimator G¹: "g0" plain mean, "g1" debiased, "g2" debiased and weighted towards hard
            negatives.
        num_positives: M, the number of positives; a step needs M − 1 extra (nca) or mixed views (mixnca).
        lam: λ, the share of the image itself in a mixed view (mixnca).
        alpha: α, the weight of the robust term; 0 leaves it out, and no adversarial view is needed.
        robust_negatives: The estimator G² of the robust term; None: the same as `negatives`.
        weight: w of the robust term: "loss" = ŵ(x), the clean loss of the same row; "relative" = ŵ(x) divided
            by its mean over the batch, a constant; "one" = 1. Or a function of the two views' normalised
            embeddings, (B, D) each, and of the clean loss of each row, (2B,), z0's rows first; it returns one
            value per image, (B,), or per row, (2B,). A `weight` given to the call replaces it.
        temperature: t, by which similarities are divided.
        tau_plus: τ⁺, the assumed share of positives among the negatives (g1, g2).
        beta: β, how strongly hard negatives are weighted (g2).
        detach_weight: Treat w as a constant in the gradient, as "relative" always does.
        denominator: "N": S + N·G as in the paper's main text; "MN": S + M·N·G as in its Appendix B (nca).
        mix_negatives: "pair": a mixed view's negatives are the other rows of (z0, mixed); "clean": those of
            (z0, z1), which is closest to the paper.
        gather: Take negatives from all ranks of torch.distributed, which must have the same number of rows.

    Example:
        >>> loss = IntNaClLoss.preset("debiased_hardneg", temperature=0.2)
        >>> loss(torch.randn(8, 16), torch.randn(8, 16)).shape
        torch.Size([])
    """

    def __init__(
        self,
        *,
        nacl: NaCl = "nca",
        negatives: Negatives = "g0",
        num_positives: int = 1,
        lam: float = 0.5,
        alpha: float = 0.0,
        robust_negatives: Negatives | None = None,
        weight: Weight | WeightFunction = "loss",
        temperature: float = 0.5,
        tau_plus: float = 0.01,
        beta: float = 1.0,
        detach_weight: bool = False,
        denominator: Denominator = "N",
        mix_negatives: MixNegatives = "pair",
        gather: bool = False,
    ) -> None:
        super().__init__()
        self.weight = weight
        # Settings can hold only names: for a function, they keep the default.
        name = LossConfig.weight if callable(weight) else weight
        self.config = LossConfig(
            nacl=nacl,
            negatives=negatives,
            num_positives=num_positives,
            lam=lam,
            alpha=alpha,
            robust_negatives=robust_negatives,
            weight=name,
            temperature=temperature,
            tau_plus=tau_plus,
            beta=beta,
            detach_weight=detach_weight,
            denominator=denominator,
            mix_negatives=mix_negatives,
            gather=gather,
        )

    @classmethod
    def preset(cls, name: Preset, **overrides: Any) -> Self:
        """Build a row of the paper's Table 1 by name; `overrides` are keywords of the constructor."""
        check_choice("preset", name, PRESETS)
        for keyword in overrides:
            check_choice("keyword", keyword, (field.name for field in fields(LossConfig)))
        return cls(**PRESETS[name] | overrides)

    @property
    def views_needed(self) -> ViewsNeeded:
        """The number of plain, extra, mixed and adversarial views that a step must provide."""
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
        weight: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a batch, a scalar; every view is (B, D) and is normalised inside.

        `weight`, (B,) or (2B,), is w(x) of the robust term by image or row; it replaces the constructor's.
        """
        return self.terms(z0, z1, extra=extra, mixed=mixed, adversarial=adversarial, weight=weight)["loss"]

    if TYPE_CHECKING:  # to nn.Module, a call takes and returns anything

        def __call__(
            self,
            z0: Tensor,
            z1: Tensor,
            *,
            extra: Sequence[Tensor] | None = None,
            mixed: Sequence[Tensor] | None = None,
            adversarial: Tensor | None = None,
            weight: Tensor | None = None,
        ) -> Tensor: ...

    def terms(
        self,
        z0: Tensor,
        z1: Tensor,
        *,
        extra: Sequence[Tensor] | None = None,
        mixed: Sequence[Tensor] | None = None,
        adversarial: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return the loss and its two terms: {"nacl", "robust", "loss"}, where loss = nacl + α·robust."""
        extra, mixed = _as_tuple("extra", extra), _as_tuple("mixed", mixed)
        self._check_views(z0, z1, extra, mixed, adversarial)
        if weight is not None and adversarial is None:
            raise InputError("weight is w(x) of the robust term, which alpha=0 leaves out: omit weight, too.")
        with torch.autocast(z0.device.type, enabled=False):
            anchor, positive = self._embed(z0), self._embed(z1)
            clean = self._compare(anchor, positive, self._estimator(self.config.negatives))
            nacl = self._nacl(anchor, positive, clean, extra, mixed)
            robust = (
                self._robust(anchor, positive, clean, adversarial, weight)
                if adversarial is not None
                else 0 * nacl
            )
            return {"nacl": nacl, "robust": robust, "loss": nacl + self.config.alpha * robust}

    def extra_repr(self) -> str:
        """Return the settings that differ from SimCLR's."""
        default, own = asdict(LossConfig()), asdict(self.config) | {"weight": self.weight}
        return ", ".join(f"{k}={v!r}" for k, v in own.items() if v != default[k])

    def _embed(self, z_BD: Tensor) -> Embedding:
        return gather_embedding(normalize(z_BD), self.config.gather)

    def _estimator(self, name: str) -> Estimator:
        return estimator(name, self.config.tau_plus, self.config.beta)

    def _compare(self, first: Embedding, second: Embedding, g: Estimator) -> Pair:
        return compare(first, second, g, self.config.temperature)

    def _nacl(
        self,
        anchor: Embedding,
        positive: Embedding,
        clean: Pair,
        extra: Sequence[Tensor],
        mixed: Sequence[Tensor],
    ) -> Tensor:
        """L_NaCl(G¹, M, λ): both of its forms are the base loss when M = 1."""
        temperature = self.config.temperature
        if extra:
            rows_RD = torch.cat([anchor.own_BD, positive.own_BD])
            extras_RE = [paired_similarity(rows_RD, normalize(z).repeat(2, 1), temperature) for z in extra]
            return nca_rows(clean, torch.stack(extras_RE, dim=1), self.config.denominator).mean()
        base, parts = base_rows(clean).mean(), []
        for mixed_BD in mixed:
            if self.config.mix_negatives == "pair":
                pair = self._compare(anchor, self._embed(mixed_BD), self._estimator(self.config.negatives))
            else:
                positive_B = paired_similarity(anchor.own_BD, normalize(mixed_BD), temperature)
                pair = Pair(positive_B, clean.negatives_R[: len(mixed_BD)])
            parts.append(mix_rows(pair, self.config.lam).mean())
        return base + torch.stack(parts).mean() if parts else base

    def _robust(
        self,
        anchor: Embedding,
        positive: Embedding,
        clean: Pair,
        adversarial_BD: Tensor,
        weight: Tensor | None,
    ) -> Tensor:
        """L_Robust(G², w), with ŵ from the clean pair under the same G²."""
        g = self._estimator(self.config.robust_negatives or self.config.negatives)
        detach = self.config.detach_weight
        differs = g != self._estimator(self.config.negatives)
        if differs and weight is None and self.weight != "one":
            clean = self._compare(anchor, positive, g)
        if weight is None and callable(self.weight):
            given = (anchor.own_BD, positive.own_BD, base_rows(clean))
            compiling = torch.compiler.is_compiling()
            weight = self.weight(*given) if compiling else call("weight", self.weight, *given)
        if weight is not None:
            w_R = given_weight(weight, clean.positive_R, detach=detach)
        else:
            w_R = adversarial_weight(clean, self.config.weight, detach=detach, gather=self.config.gather)
        return robust_rows(self._compare(anchor, self._embed(adversarial_BD), g), w_R).mean()

    def _check_views(
        self,
        z0: Tensor,
        z1: Tensor,
        extra: Sequence[Tensor],
        mixed: Sequence[Tensor],
        adversarial: Tensor | None,
    ) -> None:
        """Raise unless there are as many views as the settings need, all floats of one shape."""
        given = {"extra": len(extra), "mixed": len(mixed), "adversarial": int(adversarial is not None)}
        for name, count in given.items():
            needed = getattr(self.views_needed, name)
            if count != needed:
                remedy = (
                    "leave out the others, or change these settings" if count > needed else REMEDIES[name]
                )
                raise InputError(
                    f"{name}: {count} views given, {needed} needed by nacl={self.config.nacl!r}, "
                    f"num_positives={self.config.num_positives}, alpha={self.config.alpha}: {remedy}."
                )
        views = {  # not merged by |, which torch 2.6 cannot compile
            "z0": z0,
            "z1": z1,
            **{f"extra[{j}]": z for j, z in enumerate(extra)},
            **{f"mixed[{j}]": z for j, z in enumerate(mixed)},
        }
        if adversarial is not None:
            views["adversarial"] = adversarial
        for name, z in views.items():
            check_dense(name, z, "(batch, features)")
            if z.ndim != 2 or not has_floats(z):
                raise InputError(
                    f"{name} is {z.dtype} of shape {tuple(z.shape)}: expected floats of (batch, features)."
                )
            if z.shape != z0.shape:
                raise InputError(
                    f"{name} has shape {tuple(z.shape)}, z0 has {tuple(z0.shape)}: they must be equal."
                )
            if z.device != z0.device:
                raise InputError(f"{name} is on {z.device}, z0 on {z0.device}: move them to one device.")
        if len(z0) * (world_size() if self.config.gather else 1) < 2:
            raise InputError(
                f"z0 has {len(z0)} rows: at least 2 are needed, since a row's negatives are the others. A "
                "DataLoader with drop_last=True leaves out a small last batch."
            )


def _as_tuple(name: str, views: Sequence[Tensor] | None) -> tuple[Tensor, ...]:
    if views is None:
        return ()
    if isinstance(views, Tensor):
        check_dense(name, views, "stacked views, (views, batch, features)")
    if isinstance(views, Tensor) and views.ndim < 3:  # the rows of one view would count as views
        raise InputError(f"{name} is one view of shape {tuple(views.shape)}: give a list, [{name}].")
    if not isinstance(views, Iterable) or getattr(views, "ndim", 1) == 0:
        raise InputError(f"{name} is a {type(views).__name__}: give a list of views, (batch, features) each.")
    return tuple(views)
