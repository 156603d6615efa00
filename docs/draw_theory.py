"""Draw the figures of docs/theory.md from the package's own functions: `python docs/draw_theory.py`."""

import math
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from intnacl import IntNaClLoss
from intnacl.losses.nacl import mix_rows
from intnacl.losses.negatives import Pair, log_debiased
from intnacl.losses.robust import adversarial_weight, robust_rows
from intnacl.losses.similarity import log_mean_negatives
from intnacl.plots.theory import INK, draw_bounds, draw_lemma, draw_spaces, save_theory
from intnacl.theory.comparison import ComparisonConfig, learn_spaces, load_table, measure
from intnacl.theory.neighbours import neighbour_logits
from intnacl.theory.sweep import SweepConfig, exclusive_or, sweep, two_classes

IMAGES = Path(__file__).parent / "images"
SHADES = ("#1b6ca8", "#e07b39", "#4a8f4a", "#b3202c")


def step_nca() -> None:
    """Step 0: supervised NCA on the digits."""
    X, y = load_table("digits")
    spaces = learn_spaces(X, y, ComparisonConfig(device="cpu"))
    save_theory(draw_spaces(spaces, measure(spaces, y), y), IMAGES / "theory-0-nca.png")


def step_sphere() -> None:
    """Step 1: on the sphere, NCA's kernel of distances is the contrastive kernel of cosines."""
    figure, axes = _panels(1, 5.2)
    angles = torch.linspace(0, math.pi, 181)
    for t, ink in zip((1.0, 0.5, 0.2), SHADES, strict=False):
        z = torch.stack([angles.cos(), angles.sin()], dim=1)
        logits = neighbour_logits(z[:1] / math.sqrt(2 * t), z / math.sqrt(2 * t), 0)[0]
        distance = (logits[1:] - 1 / (2 * t)).exp()  # the logits leave out ‖z_i‖²
        cosine = ((z[1:] @ z[0] - 1) / t).exp()
        axes[0].plot(angles[1:].rad2deg(), distance, color=ink, label=f"exp(−‖f−f′‖²/2t), t = {t}")
        axes[0].plot(angles[6::12].rad2deg(), cosine[5::12], "o", color=ink, ms=4, label="exp((f·f′ − 1)/t)")
    axes[0].set(xlabel="angle between f and f′ (degrees)", ylabel="kernel", title="(S1) = (S3) for unit norm")
    axes[0].legend(fontsize=8)
    _save(figure, "theory-1-sphere.png")


def step_batch() -> None:
    """Step 2: positives and negatives in a batch of four images."""
    figure, axes = _panels(2, 4.4)
    B = 4
    for axis, M in zip(axes, (1, 3), strict=True):
        image, view = torch.arange(B).repeat(M + 1), torch.arange(M + 1).repeat_interleave(B)
        positive = (image[: 2 * B, None] == image[None]) & ~torch.eye(2 * B, B * (M + 1), dtype=torch.bool)
        # An extra view is a positive of both rows of its own image, and a negative of no row.
        negative = (image[: 2 * B, None] != image[None]) & (view < 2)[None]
        axis.imshow(positive.int() - negative.int(), cmap="RdBu", vmin=-1.6, vmax=1.6)
        axis.set(title=f"M = {int(positive.sum(1)[0])} and N = {int(negative.sum(1)[0])} per row")
        axis.set(xlabel="columns: views of the four images", ylabel="rows: z0, then z1")
        axis.set_xticks(range(B * (M + 1)), [f"z{int(v)}" for v in view], fontsize=6)
        axis.set_yticks(range(2 * B), [f"z{int(v)}" for v in view[: 2 * B]], fontsize=6)
    _save(figure, "theory-2-batch.png")


def step_positives() -> None:
    """Step 3: the effect of N·G and M·N·G on the loss and on its gradient in the anchors."""
    figure, axes = _panels(2, 4.8)
    torch.manual_seed(0)
    centres = torch.randn(64, 16)
    views = [centres + 0.7 * torch.randn(64, 16) for _ in range(17)]
    counts = (1, 2, 4, 8, 16)
    for denominator, ink in (("N", SHADES[1]), ("MN", SHADES[0])):
        losses, norms = zip(*(_loss_and_gradient_norm(views, M, denominator) for M in counts), strict=True)
        label = "·".join(denominator) + "·G"
        axes[0].plot(counts, losses, "o-", color=ink, label=label)
        axes[1].plot(counts, norms, "o-", color=ink, label=label)
    axes[0].set(title="loss, 64 images, N = 126, t = 0.5", xlabel="M")
    axes[1].set(title="norm of its gradient in z0", xlabel="M", ylim=(0, None))
    axes[0].legend()
    _save(figure, "theory-3-positives.png")


def _loss_and_gradient_norm(views: list[torch.Tensor], M: int, denominator: str) -> tuple[float, float]:
    z0 = views[0].clone().requires_grad_()
    loss = IntNaClLoss(num_positives=M, denominator=denominator)(z0, views[1], extra=views[2 : M + 1])
    (gradient,) = torch.autograd.grad(loss, z0)
    return loss.item(), gradient.norm().item()


def step_negatives() -> None:
    """Step 4: the weight of a negative in G, by its similarity to the anchor."""
    figure, axes = _panels(2, 4.8)
    cosines = torch.linspace(-1, 1, 101, dtype=torch.float64)
    ring = torch.stack([cosines, (1 - cosines.square()).sqrt()], dim=1)
    anchor = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    for (label, beta), ink in zip(
        {"g0, g1 (β = 0)": 0.0, "g2, β = 1": 1.0, "g2, β = 2": 2.0}.items(), SHADES, strict=False
    ):
        keys = torch.cat(
            [anchor, ring[:50], anchor, ring[50:100]]
        ).requires_grad_()  # row 0 and its positive are not negatives
        log_mean = log_mean_negatives(torch.cat([anchor, anchor]), keys, 0.5, beta)[0]
        weight = torch.autograd.grad(log_mean, keys)[0][:, 0] * 0.5
        order = [*range(1, 51), *range(52, 102)]
        axes[0].plot(cosines[:100], 100 * weight[order], color=ink, label=label)
    axes[0].set(xlabel="cosine of negative and anchor", title="slope of log G in s_j, mean 1 (t = 0.5)")
    axes[0].legend()
    positive = torch.linspace(-2, 2, 101, dtype=torch.float64)
    for tau, ink in zip((0.0, 0.01, 0.1, 0.3), SHADES, strict=True):
        estimate = log_debiased(torch.zeros_like(positive), positive, tau, 0.5).exp()
        axes[1].plot(positive / 2, estimate, color=ink, label=f"τ⁺ = {tau}")
    axes[1].set(xlabel="cosine of the positive", title="G if the negatives' mean κ is 1 (t = 0.5)")
    axes[1].legend()
    _save(figure, "theory-4-negatives.png")


def step_mix() -> None:
    """Step 5: a mixed view's loss has its minimum at Ω = λ."""
    figure, axes = _panels(1, 5.2)
    omega = torch.linspace(0.005, 0.995, 200, dtype=torch.float64)
    pair = Pair(omega.logit(), torch.zeros_like(omega))
    for lam, ink in zip((0.5, 0.7, 0.9, 1.0), SHADES, strict=True):
        loss = mix_rows(pair, lam)
        axes[0].plot(omega, loss, color=ink, label=f"λ = {lam}")
        axes[0].plot(omega[loss.argmin()], loss.min(), "o", color=ink)
    axes[0].set(
        xlabel="Ω", ylabel="−λ log Ω − (1−λ) log(1−Ω)", title="MIXNCA: q = λ instead of q = 1", ylim=(0, 3)
    )
    axes[0].legend()
    _save(figure, "theory-5-mix.png")


def step_robust() -> None:
    """Step 6: the adversarial weighting gives more weight to rows that are hard without an attack."""
    figure, axes = _panels(1, 5.2)
    clean_cosine = torch.linspace(-1, 1, 101)
    negatives = torch.full_like(clean_cosine, math.log(510))
    clean, attacked = Pair(clean_cosine / 0.5, negatives), Pair(clean_cosine / 0.5 - 0.6, negatives)
    for weight, ink in (("one", SHADES[1]), ("loss", SHADES[0])):
        w = adversarial_weight(clean, weight, detach=False)
        axes[0].plot(
            clean_cosine,
            robust_rows(attacked, w),
            color=ink,
            label={"one": "w = 1", "loss": "w = ŵ(x)"}[weight],
        )
    axes[0].set(xlabel="cosine of the clean pair; the attacked pair's is 0.3 lower", ylabel="robust row loss")
    axes[0].set(title="L_Robust(G, w), N·G = 510, t = 0.5", ylim=(0, None))
    axes[0].legend()
    _save(figure, "theory-6-robust.png")


def step_bounds() -> None:
    """Step 7: the inequalities, measured; step 8: Lemma B.3 on two counterexamples."""
    measured = sweep(SweepConfig())
    save_theory(draw_bounds(measured), IMAGES / "theory-7-bounds.png")
    figure = Figure(figsize=(13, 3.4), layout="constrained")
    axes = figure.subplots(1, 4)
    for k, (name, mixture) in enumerate(
        {"two classes": two_classes(), "exclusive or": exclusive_or()}.items()
    ):
        _draw_circle(axes[2 * k], mixture.z_KPD, name)
        draw_lemma(axes[2 * k + 1], measured["lemma"][name], "N = K − 1 = 1", fontsize=6)
    _save(figure, "theory-8-lemma.png")


def _draw_circle(axes: Axes, z_KPD: torch.Tensor, name: str) -> None:
    circle = torch.linspace(0, 2 * math.pi, 100)
    axes.plot(circle.cos(), circle.sin(), color=INK["paper"], lw=0.8)
    for points, marker, ink in zip(z_KPD, "os", (SHADES[0], SHADES[3]), strict=True):
        axes.plot(*points.T, marker, color=ink, ms=9)
        axes.plot(*points.mean(0), "x", color=ink, ms=9)
    axes.set(title=f"{name} (× class mean)", aspect="equal", xticks=[], yticks=[])


def _panels(count: int, width: float) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width * count, 3.6), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _save(figure: Figure, name: str) -> None:
    figure.savefig(IMAGES / name, dpi=100, metadata={"Software": None})


if __name__ == "__main__":
    torch.set_num_threads(1)
    IMAGES.mkdir(exist_ok=True)
    for step in (
        step_nca,
        step_sphere,
        step_batch,
        step_positives,
        step_negatives,
        step_mix,
        step_robust,
        step_bounds,
    ):
        step()
