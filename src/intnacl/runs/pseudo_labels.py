"""Pseudo-labels, which take the place of labels in the last stage of a robust encoder, as in DynACL++.

DynACL++ (Luo et al. 2023, "Rethinking the Effect of Data Augmentation in Adversarial Contrastive Learning")
clusters an encoder's features of the training images by k-means, lets a linear layer learn the clusters on
the frozen encoder, and then fine-tunes both by TRADES. No image's label is used. As many clusters as there
are classes are still a fact about the labels, so their number is noted wherever figures of such an encoder
are.

Shapes: N training images, F features.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from intnacl.console import show, watched
from intnacl.data.augment import view_of_step
from intnacl.data.dataset import Dataset
from intnacl.errors import InputError
from intnacl.evaluation import adversarial_probe
from intnacl.evaluation.adversarial_probe import AlfConfig
from intnacl.evaluation.features import check_finite, extract
from intnacl.evaluation.precision import exact_float32
from intnacl.files import parse_json, read_file, write_file
from intnacl.models.weights import checksum_file, load_encoder, parse_tensors
from intnacl.runs.config import RunConfig
from intnacl.runs.folder import RunFolder
from intnacl.runs.objective import load_begun
from intnacl.runs.result import Clustering
from intnacl.training.checkpoint import saved
from intnacl.training.ranks import Ranks, barrier

STARTS = 3  # of k-means; that of the least distances is taken
KEY = "intnacl"


@dataclass(frozen=True, kw_only=True)
class PseudoLabels:
    """The cluster of each training image, and the linear layer that has learned them."""

    labels: Tensor
    """(N,), from 0."""
    head: Mapping[str, Tensor]
    """Weight and bias of the layer."""
    clustering: Clustering

    @property
    def facts(self) -> str:
        """The number of clusters and their sizes, in one line."""
        count = self.clustering["clusters"]
        sizes = self.labels.bincount(minlength=count)
        return (
            f"pseudo-labels: {count:,} clusters of {int(sizes.min()):,} to {int(sizes.max()):,} images; the "
            f"linear layer begins with {self.clustering['head_accuracy']:.1f} % of them right"
        )

    def given_to(self, train: Dataset) -> Dataset:
        """Return the training images with these labels in place of their own."""
        classes = tuple(f"cluster {number}" for number in range(self.clustering["clusters"]))
        return replace(train, labels=self.labels, classes=classes, whole_checksum=train.checksum)


def pseudo_labels(config: RunConfig, train: Dataset, folder: RunFolder, here: Ranks) -> PseudoLabels:
    """Return the pseudo-labels of a run: those in its folder or, before its first update, new ones.

    The main rank makes the file, which all ranks read.
    """
    path = folder.pseudo_labels
    if here.main and not path.exists():
        if saved(folder.checkpoints):
            raise InputError(
                f"{path} is gone, with which {folder} was begun: bring it back from a copy, or take another "
                "--out."
            )
        _make(config, train, folder, here.device)
    barrier(here)
    tensors, clustering = _read(folder)
    if len(tensors["labels"]) != len(train) or clustering["data"] != train.checksum:
        raise InputError(
            f"{folder} was begun with other images than the data set has now ({len(train):,} images): bring "
            "it back to what it was, or take another --out."
        )
    head = {name: tensors[name] for name in ("weight", "bias")}
    return PseudoLabels(labels=tensors["labels"], head=head, clustering=clustering)


def read_clustering(folder: RunFolder) -> Clustering:
    """Return how a run's pseudo-labels were made, and the checksum of their file."""
    return _read(folder)[1]


def cluster(features_NF: Tensor, clusters: int, seed: int) -> Tensor:
    """Return the cluster of each image, (N,), by k-means on features of length 1.

    Lloyd's algorithm from k-means++, the best of three starts. Length 1 since the encoders' losses see
    cosines alone; DynACL++ takes features as they are.
    """
    from sklearn.cluster import KMeans

    if clusters > len(features_NF):
        raise InputError(
            f"finetune.clusters={clusters} is more than the {len(features_NF):,} training images: take fewer."
        )
    check_finite(features_NF)
    units = functional.normalize(features_NF, dim=1).cpu().numpy()
    found = KMeans(clusters, n_init=STARTS, random_state=seed).fit_predict(units)
    return torch.from_numpy(found).long()


def _make(config: RunConfig, train: Dataset, folder: RunFolder, device: torch.device) -> None:
    """Cluster the images, train the linear layer, and write both."""
    from safetensors.torch import save

    wanted = config.finetune
    begun = load_begun(config)
    encoder, clustered = begun.encoder, begun
    if wanted.clustered is not None:
        clustered = load_encoder(wanted.clustered)
    with exact_float32(), watched(clustered.encoder, f"features of {train.name}", len(train)):
        features_NF = extract(clustered.encoder, train.images, device=device)
    show(f"finding {wanted.clusters:,} clusters of {len(train):,} images")
    labels = cluster(features_NF, wanted.clusters, config.seed)

    # As in DynACL++: on clean augmented images, at a constant rate.
    sgd = AlfConfig(
        epochs=wanted.head_epochs,
        lr=wanted.head_lr,
        first_end=1.0,
        second_end=1.0,
        weight_decay=1e-4,
        eps=0.0,
        seed=config.seed,
    )
    images = (train.images, labels)
    view = partial(view_of_step, config.augment, config.seed)
    passes = 1 + (wanted.head_epochs + 1) * len(train)
    with exact_float32(), watched(encoder, "linear layer on clusters, images", passes):
        classifier, figures = adversarial_probe.evaluate(encoder, images, images, view, sgd, device=device)
    clustering = Clustering(
        clusters=wanted.clusters,
        seed=config.seed,
        starts=STARTS,
        encoder_sha256=clustered.sha256,
        data=train.checksum,
        head_epochs=wanted.head_epochs,
        head_accuracy=figures["accuracy"],
    )
    tensors = {"labels": labels, **classifier.linear.state_dict()}
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    content = save(tensors, {KEY: json.dumps(clustering, sort_keys=True)})
    path = folder.pseudo_labels
    line = f"{hashlib.sha256(content).hexdigest()}  {path.name}\n"
    write_file(checksum_file(path), os.fsencode(line))
    write_file(path, content)


def _read(folder: RunFolder) -> tuple[dict[str, Tensor], Clustering]:
    """Return the file's tensors and facts; raise if it is not the one that was written."""
    path = folder.pseudo_labels
    try:
        content, noted = read_file(path), read_file(checksum_file(path)).decode(errors="replace")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}. Bring it back from a copy.") from error
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 not in noted.split():
        raise InputError(
            f"{path} is damaged: its SHA-256 is not the one in {checksum_file(path).name}. Bring it back "
            "from a copy, or take another --out."
        )
    metadata, tensors = parse_tensors(content)
    clustering: Clustering = parse_json(metadata[KEY])
    return tensors, {**clustering, "sha256": sha256}
