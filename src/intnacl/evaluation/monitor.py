"""Quick figures of an encoder during training. Test images are not used."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from intnacl.data.dataset import Dataset
from intnacl.data.streamed import Images, part_of
from intnacl.evaluation.features import check_pair, extract
from intnacl.evaluation.knn import score, suited
from intnacl.evaluation.rankme import effective_rank
from intnacl.training.journal import RANK

IMAGES, QUERIES = 10_000, 2_000  # at most


class Monitor:
    """Computes figures of an encoder from its features of at most 10,000 training images.

    - `rankme`: their effective rank, with labels or without;
    - `knn`: the accuracy with them as neighbours, on at most 2,000 held-out images. Without held-out images,
      `knn_train`: that on as many of the training images, each classified by the others;
    - `probe`: the accuracy of a probe, from features to logits, on the held-out images, if there is one.
    """

    def __init__(
        self,
        train: Dataset,
        held_out: Dataset | None,
        device: torch.device,
        probe: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.device, self.probe = device, probe
        chosen = train.spread(IMAGES)  # spread over the set, since some sets are sorted by class
        self.images, self.labels_N = part_of(train.images, chosen), None
        self.held_out: tuple[Images, Tensor] | None = None
        if train.labels is None:
            return
        self.labels_N, count = train.labels[chosen], len(chosen)
        if held_out is None:
            self.own_T: Tensor | None = torch.arange(min(QUERIES, count)) * count // min(QUERIES, count)
            self.config = suited(count - 1, len(train.classes))
        else:
            assert held_out.labels is not None
            chosen = held_out.spread(QUERIES)
            self.held_out, self.own_T = (part_of(held_out.images, chosen), held_out.labels[chosen]), None
            check_pair((self.images, self.labels_N), self.held_out)
            self.config = suited(count, len(train.classes))

    def __call__(self, encoder: nn.Module) -> dict[str, float]:
        """Return the figures by name, accuracies in percent."""
        features_NF = extract(encoder, self.images, device=self.device)
        figures = {RANK: effective_rank(features_NF)}
        if self.labels_N is None:
            return figures
        if self.held_out is None:
            assert self.own_T is not None
            queries = features_NF[self.own_T], self.labels_N[self.own_T]
            name = "knn_train"
        else:
            queries = extract(encoder, self.held_out[0], device=self.device), self.held_out[1]
            name = "knn"
            if self.probe is not None:
                right_T = self.probe(queries[0]).argmax(1) == queries[1].to(self.device)
                figures["probe"] = 100 * right_T.float().mean().item()
        found = score(features_NF, self.labels_N, *queries, self.config, own_T=self.own_T)
        return figures | {name: found["accuracy"]}
