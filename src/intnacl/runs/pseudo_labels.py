"""Pseudo-labels, which replace labels in the last training stage of a robust encoder, as in DynACL++.

DynACL++ (Luo et al. 2023, "Rethinking the Effect of Data Augmentation in Adversarial Contrastive Learning")
clusters an encoder's features of the training images by k-means, trains a linear layer to predict the
clusters on the frozen encoder, and then fine-tunes both by TRADES. No image's label is used. But using as
many clusters as classes reveals a fact about the labels, so the number is reported with every figure of such
an encoder.

Shapes: N training images, F features.
"""

import hashlib
import json
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
from intnacl.models.weights import checksum_file, load_encoder, parse_tensors, write_checksum
from intnacl.runs.config import RunConfig
from intnacl.runs.folder import RunFolder
from intnacl.runs.objective import load_begun
from intnacl.runs.result import Clustering
from intnacl.training.checkpoint import saved
from intnacl.training.ranks import Ranks, barrier

STARTS = 3  # of k-means; the clustering with the smallest distances is used
KEY = "intnacl"


@dataclass(frozen=True, kw_only=True)
class PseudoLabels:
    """The cluster of each training image, and the linear layer trained to predict the clusters."""

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
        """Return the training images with these labels instead of their own."""
        classes = tuple(f"cluster {number}" for number in range(self.clustering["clusters"]))
        return replace(train, labels=self.labels, classes=classes, whole_checksum=train.checksum)


def pseudo_labels(config: RunConfig, train: Dataset, folder: RunFolder, here: Ranks) -> PseudoLabels:
    """Return the pseudo-labels of a run: from its folder or, before its first update, new ones.

    The main rank writes the file, and all ranks read it.
    """
    path = folder.pseudo_labels
    if here.main and not path.exists():
        if saved(folder.checkpoints):
            raise InputError(
                f"{path}, with which {folder} was started, is missing: restore it from a copy, or choose "
                "another --out."
            )
        _make(config, train, folder, here.device)
    barrier(here)
    tensors, clustering = _read(folder)
    if len(tensors["labels"]) != len(train) or clustering["data"] != train.checksum:
        raise InputError(
            f"{folder} was started with other images than the data set has now ({len(train):,} images): "
            "restore the data set, or choose another --out."
        )
    head = {name: tensors[name] for name in ("weight", "bias")}
    return PseudoLabels(labels=tensors["labels"], head=head, clustering=clustering)


def read_clustering(folder: RunFolder) -> Clustering:
    """Return the settings of a run's pseudo-labels, and the checksum of their file."""
    return _read(folder)[1]


def cluster(features_NF: Tensor, clusters: int, seed: int) -> Tensor:
    """Return the cluster of each image, (N,), by k-means on features of length 1.

    It is Lloyd's algorithm after k-means++, the best of three starts. Features have length 1, because the
    encoders' losses only see cosines; DynACL++ uses unnormalised features.
    """
    from sklearn.cluster import KMeans

    if clusters > len(features_NF):
        raise InputError(
            f"finetune.clusters={clusters} exceeds the {len(features_NF):,} training images: give fewer."
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
    write_checksum(path, content)
    write_file(path, content)


def _read(folder: RunFolder) -> tuple[dict[str, Tensor], Clustering]:
    """Return the file's tensors and metadata; raise if its checksum is not the one noted."""
    path = folder.pseudo_labels
    try:
        content, noted = read_file(path), read_file(checksum_file(path)).decode(errors="replace")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}. Restore it from a copy.") from error
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 not in noted.split():
        raise InputError(
            f"{path} is damaged: its SHA-256 is not the one in {checksum_file(path).name}. Restore it from a "
            "copy, or choose another --out."
        )
    metadata, tensors = parse_tensors(content)
    clustering: Clustering = parse_json(metadata[KEY])
    return tensors, {**clustering, "sha256": sha256}
