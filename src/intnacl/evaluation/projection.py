"""Layouts of features on a plane for display, and the share of neighbourhoods that they keep.

Shapes: N images, F features, K neighbours, R rows of a tile, or some of all, n of one piece.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from intnacl.errors import check_count
from intnacl.evaluation.features import check_finite, select_rows

DIRECTIONS = 50  # principal directions in which t-SNE searches neighbours: more only take longer
PERPLEXITY = 30.0
FEWEST = 10  # images from which t-SNE is worthwhile
TILE = 1024  # rows whose similarities to all others are held at once


class Neighbours(NamedTuple):
    """The images nearest to each one, nearest first, and the cosines of their features."""

    index_NK: Tensor
    cosine_NK: Tensor


def nearest_neighbours(features_NF: Tensor, count: int) -> Neighbours:
    """Return the `count` other images nearest by cosine to each one, or all others where there are fewer."""
    check_count("count", count)
    check_finite(features_NF)
    unit_NF, count = functional.normalize(features_NF, dim=1), min(count, len(features_NF) - 1)
    found = []
    for rows_R in torch.split(torch.arange(len(unit_NF), device=unit_NF.device), TILE):
        cosine_RN = unit_NF[rows_R] @ unit_NF.T
        cosine_RN.scatter_(1, rows_R[:, None], -torch.inf)  # an image is no neighbour of itself
        found.append(cosine_RN.topk(count, dim=1))
    return Neighbours(torch.cat([one.indices for one in found]), torch.cat([one.values for one in found]))


def nearest_to(rows_R: Tensor, features: Iterable[Tensor], count: int) -> Tensor:
    """Return the `count` other images nearest by cosine to each of rows_R, nearest first: (R, count).

    Features come in pieces (n, F), which are iterated twice; one piece is in memory at a time.
    """
    query_RF = functional.normalize(select_rows(features, rows_R), dim=1)
    best_RK, near_RK, start = query_RF[:, :0], rows_R.new_empty(len(rows_R), 0), 0
    for unit_nF in (functional.normalize(piece, dim=1).cpu() for piece in features):
        here_n = torch.arange(start, start := start + len(unit_nF))
        cosine_Rn = query_RF @ unit_nF.T
        cosine_Rn[rows_R[:, None] == here_n] = -torch.inf  # last of all: an image is no neighbour of itself
        best_RK, order_RK = torch.cat([best_RK, cosine_Rn], 1).sort(dim=1, descending=True, stable=True)
        near_RK = torch.cat([near_RK, here_n.expand(len(rows_R), -1)], 1).gather(1, order_RK)
        best_RK, near_RK = best_RK[:, :count], near_RK[:, :count]
    return near_RK[:, : start - 1]


def project(features_NF: Tensor, *, seed: int = 0) -> Tensor:
    """Lay features out on a plane, (N, 2), so that neighbours by cosine are close together.

    This is t-SNE of the unit features' principal directions, initialised at the first two; docs/explore.md
    compares it with alternatives. Fewer than 10 images are laid out by the first two directions alone.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    check_finite(features_NF)
    unit_NF = functional.normalize(features_NF.detach().cpu().float(), dim=1)
    n, f = unit_NF.shape
    if n < 3 or f < 2 or bool((unit_NF == unit_NF[0]).all()):
        return torch.arange(n)[:, None] * torch.tensor([1.0, 0.0])
    main = PCA(min(DIRECTIONS, n, f), random_state=seed).fit_transform(unit_NF.numpy())
    if n < FEWEST:
        return torch.from_numpy(main[:, :2].copy())
    perplexity = min(PERPLEXITY, (n - 1) / 3)
    found = TSNE(perplexity=perplexity, init="pca", random_state=seed, n_jobs=-1).fit_transform(main)
    return torch.from_numpy(found)


def neighbours_kept(index_NK: Tensor, plane_N2: Tensor) -> float:
    """Return the share of each image's K neighbours that are among its K nearest on the plane, averaged."""
    from sklearn.neighbors import NearestNeighbors

    tree = NearestNeighbors(n_neighbors=index_NK.shape[1]).fit(plane_N2.numpy())
    near_NK = torch.from_numpy(tree.kneighbors(return_distance=False))
    own_NKK = index_NK.cpu()[:, :, None] == near_NK[:, None, :]
    return float(own_NKK.any(dim=2).float().mean())
