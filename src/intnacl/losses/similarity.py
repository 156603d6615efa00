"""Cosine similarities between views, and their log-means in memory that grows with rows × D.

Shapes: B images on this process, D embedding size, R = 2B rows of a pair of views, K keys of the pair
(K = R on one process, R × world size with gathered keys), T rows of a tile.
"""

from typing import Any

import torch
from torch import Tensor

from intnacl.losses.autograd import refuse_double_backward

# A tile holds at most this many similarities (4 MiB in float32): small beside the encoder's own memory,
# large enough that the matrix product fills a CPU's cores or a GPU.
TILE = 2**20


def normalize(z_BD: Tensor) -> Tensor:
    """Return z / ‖z‖ in float32 or better; a zero vector stays zero and gets no gradient.

    If ‖z‖ overflows, from 1.8e19 on in float32, the result is NaN: zeros would hide that a network diverged.
    """
    z_BD = z_BD.float() if z_BD.dtype in (torch.float16, torch.bfloat16) else z_BD
    norm_B1 = torch.linalg.vector_norm(z_BD, dim=-1, keepdim=True)
    norm_B1 = norm_B1.masked_fill(norm_B1.isinf(), torch.nan)
    dead_B1 = norm_B1 == 0
    return torch.where(dead_B1, 0.0, z_BD / norm_B1.masked_fill(dead_B1, 1.0))


def paired_similarity(a_RD: Tensor, b_RD: Tensor, temperature: float) -> Tensor:
    """Return s_i = aᵢ·bᵢ / t, row by row: (R, D), (R, D) -> (R,)."""
    return (a_RD * b_RD).sum(-1) / temperature


def log_mean_negatives(
    anchors_RD: Tensor, keys_KD: Tensor, temperature: float, beta: float, first: int = 0
) -> Tensor:
    """Return the log of the mean of κ over each anchor's negatives; hard ones weigh more as β grows.

    E_i = log Σ_j κ_ij^(β+1) − log Σ_j κ_ij^β with κ_ij = exp(aᵢ·k_j / t): the first term of g2 (Eq. 4) and,
    at β = 0, the log-mean of g0 and g1 (Eqs. 2 and 3). Anchors and keys stack two views of the same images;
    image i of the anchors is image `first` + i of the keys; j runs over all keys but the anchor itself and
    its twin, so over N = K − 2 of them. (R, D), (K, D) -> (R,).

    The backward pass keeps the inputs and two numbers per row, and computes similarities again.
    """
    # When torch 2.11 compiles for a second batch size, sizes are symbolic, and fixing them to numbers, as the
    # loop over tiles does, fails inside a custom function. This call fixes them outside of it.
    _tiles(len(anchors_RD), len(keys_KD))
    log_mean_R: Tensor = _LogMeanNegatives.apply(anchors_RD, keys_KD, temperature, beta, first)[0]
    return log_mean_R


class _LogMeanNegatives(torch.autograd.Function):
    """E by tiles of rows, forward and backward. With q_ij = κ_ij / e^(E_i) and r_i = e^(βE_i) / Σ_j κ_ij^β,

    ∂E_i/∂s_ij = (β+1) κ_ij^(β+1)/Σκ^(β+1) − β κ_ij^β/Σκ^β = r_i q_ij^β ((β+1) q_ij − β).
    Nothing overflows at any temperature: κ enters relative to its row's largest, and q_ij ≤ N.
    """

    @staticmethod
    def forward(
        anchors_RD: Tensor, keys_KD: Tensor, temperature: float, beta: float, first: int
    ) -> tuple[Tensor, Tensor]:
        own_R2 = _own_keys(anchors_RD, keys_KD, first)
        # Results are allocated before the loop: small allocations between tiles would fragment the heap.
        log_mean_R, scale_R = anchors_RD.new_empty(2, len(anchors_RD))
        with torch.autocast(anchors_RD.device.type, enabled=False):
            for tile in _tiles(len(anchors_RD), len(keys_KD)):
                s_TK = _negatives(anchors_RD[tile], keys_KD, own_R2[tile], temperature)
                log_mean_R[tile], scale_R[tile] = _log_mean_and_scale(s_TK, beta)
        return log_mean_R, scale_R

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor, float, float, int], output: tuple[Tensor, Tensor]
    ) -> None:
        anchors_RD, keys_KD, ctx.temperature, ctx.beta, ctx.first = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(anchors_RD, keys_KD, *output)

    @staticmethod
    @refuse_double_backward
    def backward(ctx: Any, grad_R: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        anchors_RD, keys_KD, log_mean_R, scale_R = ctx.saved_tensors
        own_R2 = _own_keys(anchors_RD, keys_KD, ctx.first)
        weight_R = grad_R * scale_R / ctx.temperature
        anchor_grad_RD, key_grad_KD = torch.empty_like(anchors_RD), torch.zeros_like(keys_KD)
        with torch.autocast(anchors_RD.device.type, enabled=False):
            for tile in _tiles(len(anchors_RD), len(keys_KD)):
                s_TK = _negatives(anchors_RD[tile], keys_KD, own_R2[tile], ctx.temperature)
                q_TK = s_TK.sub_(log_mean_R[tile, None]).exp_()
                grad_TK = q_TK  # ∂E/∂s up to r: q^β ((β+1) q − β)
                if ctx.beta != 0:
                    grad_TK = q_TK.mul(ctx.beta + 1).sub_(ctx.beta).mul_(_power(q_TK, ctx.beta))
                grad_TK.mul_(weight_R[tile, None])
                anchor_grad_RD[tile] = grad_TK @ keys_KD
                key_grad_KD.addmm_(grad_TK.T, anchors_RD[tile])
        return anchor_grad_RD, key_grad_KD, None, None, None


def _own_keys(anchors_RD: Tensor, keys_KD: Tensor, first: int) -> Tensor:
    """The two keys of each anchor that are not negatives, itself and its twin, in any order: (R, 2)."""
    image_B = first + torch.arange(len(anchors_RD) // 2, device=anchors_RD.device)
    return torch.stack([image_B, image_B + len(keys_KD) // 2], dim=1).repeat(2, 1)


def _tiles(rows: int, keys: int) -> list[slice]:
    size = max(1, TILE // keys)
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def _negatives(anchors_TD: Tensor, keys_KD: Tensor, own_T2: Tensor, temperature: float) -> Tensor:
    """s_ij, and −∞ where key j is not a negative of anchor i: (T, K)."""
    return (anchors_TD / temperature @ keys_KD.T).scatter_(1, own_T2, -torch.inf)


def _log_mean_and_scale(s_TK: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """E and r of each row. Overwrites its input."""
    top_T = s_TK.amax(1)
    kappa_TK = s_TK.sub_(top_T[:, None]).exp_()  # relative to the row's largest, which is 1
    if beta == 0:
        weighted_T, weights_T = kappa_TK.sum(1), torch.full_like(top_T, kappa_TK.shape[1] - 2)
    else:
        power_TK = _power(kappa_TK, beta)
        weighted_T, weights_T = (power_TK * kappa_TK).sum(1), power_TK.sum(1)
    log_ratio_T = weighted_T.log() - weights_T.log()
    return top_T + log_ratio_T, (beta * log_ratio_T).exp() / weights_T


def _power(x: Tensor, exponent: float) -> Tensor:
    return x if exponent == 1 else x.pow(exponent)
