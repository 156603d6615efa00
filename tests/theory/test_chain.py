"""Appendix A as numbers: NCA's objective, step by step (S1)–(S5), is the contrastive loss for any M."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from intnacl import IntNaClLoss
from intnacl.losses.nacl import nca_rows
from intnacl.losses.negatives import Pair
from intnacl.theory.neighbours import OBJECTIVES, neighbour_logits, neighbour_loss

B, D = 6, 5


def views(count: int) -> list[Tensor]:
    return [torch.randn(B, D, dtype=torch.float64) for _ in range(count)]


def neighbourhoods(h: list[Tensor]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Each row of the pair (z0, z1) with its M positives and its N = 2B − 2 negatives, unit norm."""
    z = [normalize(view, dim=1) for view in h]
    rows, images, hoods = torch.cat(z[:2]), torch.arange(B).repeat(2), []
    for r in range(2 * B):
        positives = [z[1 if r < B else 0][r % B], *(view[r % B] for view in z[2:])]
        hoods.append((rows[r], torch.stack(positives), rows[images != r % B]))
    return hoods


def s1(x: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """Stochastic neighbours under f/√2, by distances, with the sum over j outside the fraction."""
    others = torch.cat([positives, negatives])
    total = torch.exp(-0.5 * (x - others).square().sum(1)).sum()
    return -torch.log(sum(torch.exp(-0.5 * (x - y).square().sum()) / total for y in positives))


def s2(x: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """The expression with squared distances expanded."""

    def kernel(y: Tensor) -> Tensor:
        return torch.exp(y @ x - 0.5 * x @ x - 0.5 * y.square().sum(1))

    return -torch.log((kernel(positives) / kernel(torch.cat([positives, negatives])).sum()).sum())


def s3(x: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """Norms are t⁻¹ (1 at t = 1), so that numerator and denominator share a factor."""
    scale = x @ x
    others = torch.cat([positives, negatives])
    return -torch.log((torch.exp(positives @ x - scale) / torch.exp(others @ x - scale).sum()).sum())


def s4(x: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """The neighbours split into the positives and the rest."""
    own = torch.exp(positives @ x).sum()
    return -torch.log(own / (own + torch.exp(negatives @ x).sum()))


def s5(x: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """The rest written as N·g0, with the mean g0 over N negatives."""
    own, g0 = torch.exp(positives @ x).sum(), torch.exp(negatives @ x).mean()
    return -torch.log(own / (own + len(negatives) * g0))


def estimator(x: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """The objective of `NCA` itself on f/√2; an anchor's neighbours are its positives and negatives."""
    points = torch.cat([x[None], positives, negatives]) / math.sqrt(2)
    other = (torch.arange(len(points)) > len(positives))[None]
    return OBJECTIVES["kl"](neighbour_logits(points[:1], points, 0), other)[0].squeeze()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("M", [1, 2, 5])
@pytest.mark.parametrize("denominator", ["N", "MN"])
def test_every_step_is_the_contrastive_loss(M, temperature, denominator):
    """The proof's denominator counts every negative M times."""
    h = views(M + 1)
    criterion = IntNaClLoss(num_positives=M, temperature=temperature, denominator=denominator)
    expected = criterion(h[0], h[1], extra=h[2:]).item()
    scaled = [[part / math.sqrt(temperature) for part in hood] for hood in neighbourhoods(h)]
    times = M if denominator == "MN" else 1
    for step in (s1, s2, s3, s4, s5, estimator):
        losses = [step(x, positives, negatives.repeat(times, 1)) for x, positives, negatives in scaled]
        assert torch.stack(losses).mean().item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_simclr_is_nca_whose_classes_are_the_images(temperature):
    """M = 1: one call of NCA's objective on the stacked views gives the same value and gradient."""
    h = [view.requires_grad_() for view in views(2)]
    z = torch.cat([normalize(view, dim=1) for view in h])
    nca = neighbour_loss(z / math.sqrt(2 * temperature), torch.arange(B).repeat(2), "kl")
    simclr = IntNaClLoss.preset("simclr", temperature=temperature)(*h)
    assert nca.item() == pytest.approx(simclr.item(), rel=1e-12)
    for ours, theirs in zip(torch.autograd.grad(nca, h), torch.autograd.grad(simclr, h), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("M", [1, 3])
def test_nca_on_all_views_is_the_row_loss_of_the_package(M):
    """Every view is an anchor and a neighbour: each row has M positives and N = (M+1)(B−1) negatives."""
    z = torch.cat([normalize(view, dim=1) for view in views(M + 1)])
    image = torch.arange(B).repeat(M + 1)
    similarity = z @ z.T
    same = (image[:, None] == image[None]) & ~torch.eye(len(z), dtype=torch.bool)
    positive = similarity[same].reshape(len(z), M)
    negatives = similarity.masked_fill(image[:, None] == image[None], -torch.inf).logsumexp(1)
    expected = nca_rows(Pair(positive[:, 0], negatives), positive[:, 1:], "N").mean().item()
    assert neighbour_loss(z / math.sqrt(2), image, "kl").item() == pytest.approx(expected, rel=1e-12)
