"""Compare two-dimensional layouts of features: preserved neighbourhoods, separated classes, and time.

    intnacl embed RUN --split test --out features.npz
    python benchmarks/projection.py features.npz

Features are scaled to length 1, so that Euclidean neighbours are also the neighbours by cosine.
Trustworthiness and neighbours kept are over 15 neighbours; accuracy is leave-one-out, of 10 neighbours on the
plane.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE, Isomap, SpectralEmbedding, trustworthiness
from torch.nn import functional

from intnacl.evaluation.projection import nearest_neighbours, neighbours_kept, project
from intnacl.theory.neighbours import leave_one_out_accuracy

NEIGHBOURS = 15
Layout = Callable[[np.ndarray], np.ndarray]


def infonce(x: np.ndarray, epochs: int = 300, noise: int = 5) -> np.ndarray:
    """Contrastive neighbour embedding (Damrich et al. 2023): InfoNCE over the edges of the kNN graph.

    The similarity is that of t-SNE, 1 / (1 + distance²); all edges form one batch.
    """
    torch.manual_seed(0)
    near_NK = nearest_neighbours(torch.from_numpy(x), NEIGHBOURS).index_NK
    head_E = torch.arange(len(x)).repeat_interleave(NEIGHBOURS)
    plane = torch.from_numpy(PCA(2, random_state=0).fit_transform(x)).float()
    plane = (plane / plane.std()).requires_grad_()
    optimizer = torch.optim.Adam([plane], lr=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        others_EM = torch.randint(len(x), (len(head_E), noise))
        tails_E1M = torch.cat([near_NK.reshape(-1, 1), others_EM], dim=1)
        distance_E1M = (plane[head_E][:, None] - plane[tails_E1M]).square().sum(2)
        loss = -(-torch.log1p(distance_E1M)).log_softmax(1)[:, 0].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return plane.detach().numpy()


def principal(x: np.ndarray, directions: int) -> np.ndarray:
    return PCA(min(directions, *x.shape), random_state=0).fit_transform(x)


LAYOUTS: dict[str, Layout] = {
    "PCA": lambda x: principal(x, 2),
    "t-SNE (`project`)": lambda x: project(torch.from_numpy(x)).numpy(),
    "t-SNE, 500 iterations": lambda x: TSNE(
        init="pca", max_iter=500, random_state=0, n_jobs=-1
    ).fit_transform(principal(x, 50)),
    "t-SNE, all directions": lambda x: TSNE(init="pca", random_state=0, n_jobs=-1).fit_transform(x),
    "contrastive, InfoNCE": infonce,
    "spectral embedding": lambda x: SpectralEmbedding(
        affinity="nearest_neighbors", n_neighbors=NEIGHBOURS, random_state=0, n_jobs=-1
    ).fit_transform(x),
    "Isomap": lambda x: Isomap(n_neighbors=NEIGHBOURS, n_jobs=-1).fit_transform(principal(x, 50)),
}


def main(file: str, *names: str) -> None:
    with np.load(file) as found:
        features, labels = found["features"], found["labels"]
    unit_NF = functional.normalize(torch.from_numpy(features), dim=1)
    x, near_NK = unit_NF.numpy(), nearest_neighbours(unit_NF, NEIGHBOURS).index_NK
    print(f"{len(x):,} images, {x.shape[1]} features, torch {torch.__version__}")
    print("| layout | trustworthiness | neighbours kept, % | accuracy on the plane, % | seconds |")
    print("|---|---|---|---|---|")
    for name in names or LAYOUTS:
        begun = time.monotonic()
        plane = np.ascontiguousarray(LAYOUTS[name](x), dtype=np.float32)
        seconds = time.monotonic() - begun
        trust = trustworthiness(x, plane, n_neighbors=NEIGHBOURS)
        kept = 100 * neighbours_kept(near_NK, torch.from_numpy(plane))
        accuracy = 100 * leave_one_out_accuracy(torch.from_numpy(plane), torch.from_numpy(labels), 10)
        print(f"| {name} | {trust:.3f} | {kept:.1f} | {accuracy:.1f} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
