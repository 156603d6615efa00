"""Stochastic nearest neighbours: the probability that NCA maximises and its gradient, in tiles of rows.

Memory grows with rows of a tile × points, never with points². The gradient is a closed formula instead of a
recorded graph, so that one pass over the tiles gives both the loss and its derivative.

Shapes: B points, D embedding dimensions, R rows of a tile.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from intnacl.errors import InputError, check_choice
from intnacl.losses.autograd import refuse_double_backward

# Similarities held at once. On a CPU a tile should stay in the cache; a GPU wants large matrix products.
TILE_ELEMENTS = {"cpu": 2**19, "cuda": 2**26}


def neighbour_logits(z_RD: Tensor, z_BD: Tensor, first_row: int) -> Tensor:
    """Logits whose softmax over j is p_ij = e^(−‖z_i−z_j‖²) / Σ_{k≠i} e^(−‖z_i−z_k‖²) (paper, eq. of p_ij).

    ‖z_i‖² is common to a row and left out; a point is not a neighbour of itself.

    Args:
        z_RD: The rows `first_row`, `first_row` + 1, … of `z_BD`.
        z_BD: All points.
        first_row: Index of the first row.

    Returns:
        (R, B) logits.
    """
    logits_RB = torch.addmm(-z_BD.square().sum(1)[None], z_RD, z_BD.T, alpha=2.0)
    logits_RB.diagonal(first_row).fill_(-torch.inf)
    return logits_RB


def _centred(z_BD: Tensor) -> Tensor:
    """Subtract the mean: distances stay, and do not drown in the rounding of large squared coordinates."""
    return z_BD - z_BD.mean(0)


def _wide(z_BD: Tensor) -> Tensor:
    """Return the points in float32 or better: a half-precision number is too coarse for distances."""
    return z_BD.float() if z_BD.dtype in (torch.float16, torch.bfloat16) else z_BD


def _softmax(logits_RB: Tensor) -> tuple[Tensor, Tensor]:
    """Return softmax and log-sum-exp of each row by one pass of exponentials; a row of only −∞ gives NaN."""
    p_RB = logits_RB.softmax(1)
    return p_RB, logits_RB.amax(1) - p_RB.amax(1).log()


def _kl(logits_RB: Tensor, other_RB: Tensor) -> tuple[Tensor, Tensor]:
    """KL(q‖p) = −log p_i, p_i = Σ_{j: c_j = c_i} p_ij (eq. NCA); ∂/∂logit_ij = p_ij − p_ij·[c_j = c_i]/p_i.

    It is computed in logs, because an anchor far from its class has p_i below the smallest float, and yet the
    largest gradient. NaN where the anchor has no neighbour of its class.
    """
    p_RB, log_all_R = _softmax(logits_RB)
    own_RB, log_own_R = _softmax(logits_RB.masked_fill_(other_RB, -torch.inf))
    return log_all_R - log_own_R, p_RB.sub_(own_RB)


def _tv(logits_RB: Tensor, other_RB: Tensor) -> tuple[Tensor, Tensor]:
    """Total variation |q_i − p_i| = 1 − p_i, and ∂/∂logit_ij = p_ij·(p_i − [c_j = c_i])."""
    p_RB = logits_RB.softmax(1)
    own_RB = p_RB.masked_fill(other_RB, 0.0)
    p_R1 = own_RB.sum(1, keepdim=True)
    return 1 - p_R1.squeeze(1), p_RB.mul_(p_R1).sub_(own_RB)


# (logits, whether j is of another class than i) -> (loss of each row, its slope in each logit)
OBJECTIVES: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {"kl": _kl, "tv": _tv}


def _tiles(z_BD: Tensor, elements: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield each tile's first row and the row after its last; the default number of rows suits the device."""
    elements = elements or TILE_ELEMENTS.get(z_BD.device.type, TILE_ELEMENTS["cpu"])
    rows = max(1, elements // len(z_BD))
    for first in range(0, len(z_BD), rows):
        yield first, min(first + rows, len(z_BD))


class _NeighbourLoss(torch.autograd.Function):
    """Mean loss over anchors that have a neighbour of their class; backward scales the stored gradient."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, z_BD: Tensor, labels_B: Tensor, objective: str, elements: int | None
    ) -> Tensor:
        """Return the mean loss, and store its gradient, which is computed in the same pass."""
        given_BD, z_BD = z_BD, _centred(z_BD)
        singleton_B = labels_B.bincount()[labels_B] < 2
        total, grad_BD = z_BD.new_zeros(()), torch.zeros_like(z_BD)
        for first, last in _tiles(z_BD, elements):
            z_RD, singleton_R = z_BD[first:last], singleton_B[first:last]
            other_RB = labels_B[first:last, None] != labels_B
            loss_R, slope_RB = OBJECTIVES[objective](neighbour_logits(z_RD, z_BD, first), other_RB)
            total += loss_R.masked_fill(singleton_R, 0.0).sum()
            if singleton_R.any():
                slope_RB.masked_fill_(singleton_R[:, None], 0.0)
            # −‖z_i−z_j‖² moves z_i by 2(z_j−z_i) and z_j by 2(z_i−z_j); a row's slopes add up to zero.
            grad_BD[first:last] += slope_RB @ z_BD
            grad_BD.addmm_(slope_RB.T, z_RD).addcmul_(slope_RB.sum(0)[:, None], z_BD, value=-1)
        count = (~singleton_B).sum().clamp(min=1).to(z_BD)  # an integer would make the division float32
        ctx.save_for_backward(grad_BD.mul_(2 / count), given_BD)  # given_BD: to refuse a second derivative
        return total / count

    @staticmethod
    @refuse_double_backward
    def backward(ctx: FunctionCtx, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None]:
        """Scale the stored gradient."""
        grad_BD, _ = ctx.saved_tensors  # type: ignore[attr-defined]
        return grad_outputs[0] * grad_BD, None, None, None


def neighbour_loss(z_BD: Tensor, labels_B: Tensor, objective: str = "kl", tile: int | None = None) -> Tensor:
    """NCA's objective (eq. NCA), averaged over the points that have a neighbour of their own class.

    Args:
        z_BD: Embeddings, (B, D): Ax for the linear map, f(x)/√2 for the unit-norm encoder of (S1).
        labels_B: Class indices, (B,).
        objective: "kl", −log p_i, or "tv", 1 − p_i.
        tile: Similarities held at once; the default suits the device.

    Returns:
        A scalar in float32 or better, differentiable once in `z_BD`.
    """
    check_choice("objective", objective, OBJECTIVES)
    with torch.autocast(z_BD.device.type, enabled=False):
        loss: Tensor = _NeighbourLoss.apply(_wide(z_BD), labels_B, objective, tile)
    return loss


@torch.no_grad()
def leave_one_out_accuracy(z_BD: Tensor, labels_B: Tensor, neighbours: int = 1) -> float:
    """Return the share of points whose `neighbours` nearest vote for their class.

    Ties go to the class of the lowest index.
    """
    if not 1 <= neighbours < len(z_BD):
        raise InputError(
            f"neighbours={neighbours} must lie in 1…{len(z_BD) - 1}: {len(z_BD)} points leave no more."
        )
    classes = int(labels_B.max()) + 1
    z_BD, hits = _centred(_wide(z_BD)), 0
    for first, last in _tiles(z_BD):
        with torch.autocast(z_BD.device.type, enabled=False):
            near_Rk = neighbour_logits(z_BD[first:last], z_BD, first).topk(neighbours, dim=1).indices
        votes_RC = torch.nn.functional.one_hot(labels_B[near_Rk], classes).sum(1)
        hits += int((votes_RC.argmax(1) == labels_B[first:last]).sum())
    return hits / len(z_BD)
