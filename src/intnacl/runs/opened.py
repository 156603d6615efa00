"""A trained run, opened: its encoder on a device, its images, and its measurements.

run = intnacl.open_run("RUN")
classifier = run.classifier("digits")
encoder = intnacl.from_pretrained("RUN")  # the encoder alone
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from intnacl.attacks.named import Attack
from intnacl.console import watched
from intnacl.data import Dataset
from intnacl.data.datasets import absolute_name, absolute_root
from intnacl.errors import InputError, check_choice
from intnacl.evaluation.adversarial_probe import AlfConfig
from intnacl.evaluation.features import check_pair, extract
from intnacl.evaluation.knn import KnnConfig
from intnacl.evaluation.precision import exact_float32
from intnacl.evaluation.probe import Classifier, ProbeConfig
from intnacl.files import as_path
from intnacl.models.encoders import Encoder
from intnacl.models.hub import fetch, is_repository
from intnacl.models.shipped import located
from intnacl.models.weights import BEST_ENCODER, load_encoder, same_weights
from intnacl.runs.attack import measure_attacks
from intnacl.runs.config import RunConfig
from intnacl.runs.folder import RunFolder
from intnacl.runs.heads import PROTOCOLS, ProbeProtocol
from intnacl.runs.images import RunImages, pair
from intnacl.runs.measure import load_classifier, measure_alf, measure_all, measure_knn, measure_probe
from intnacl.runs.measurement import KINDS, Measurement
from intnacl.runs.measurements import Measurements
from intnacl.training.ranks import pick_device
from intnacl.training.stop import Stop

if TYPE_CHECKING:
    from intnacl.runs.result import Result

FEATURE_BATCH = 512  # images per forward pass


@dataclass(frozen=True, kw_only=True)
class Run:
    """A trained run. Nothing is loaded or measured before it is asked for."""

    folder: RunFolder
    config: RunConfig
    encoder: Encoder
    """In eval mode, shared by all measurements."""
    image_size: int
    encoder_sha256: str
    """SHA-256 of `encoder.safetensors`."""
    trained_on: str | None
    """Checksum of the images that the encoder was trained on; None if an earlier version wrote none."""
    device: torch.device
    images: RunImages
    # init=False, so that `dataclasses.replace` with another encoder starts without features.
    _features: dict[tuple[str, str], tuple[Tensor, Tensor]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @cached_property
    def measurements(self) -> Measurements:
        """The stored measurements on this encoder."""
        return Measurements(self.folder, self.encoder_sha256, self.config, image_size=self.image_size)

    @property
    def datasets(self) -> tuple[str, ...]:
        """The run's own data set, then the transfer data sets."""
        return tuple(dict.fromkeys((self.config.dataset, *self.config.evaluation.transfer)))

    def named(self, names: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the data sets that a user names, with absolute paths; by default the run's own."""
        for name in names:
            if not isinstance(name, str):
                raise InputError(
                    f"dataset={name!r} is of type {type(name).__name__}: give a name as a string."
                )
        named = (name if name in self.datasets else absolute_name(name) for name in names)
        return tuple(named) or (self.config.dataset,)

    @property
    def result(self) -> "Result | None":
        """The content of `result.json`; None until all that the configuration asks for is measured."""
        return self.folder.read_result()

    def classifier(self, dataset: str | None = None, *, protocol: ProbeProtocol | None = None) -> Classifier:
        """Return the encoder with the run's linear layer for a data set, which is fitted if necessary.

        It maps pixels in [0, 1] to logits and is in eval mode. The protocol is the training of the layer:
        "slf", as the run's probe; "alf", on attacked images; "aff" or "sff", together with the encoder, in a
        run that was fine-tuned adversarially or on clean images. None: "aff" or "sff" for such a run, else
        "slf".
        """
        if protocol is not None:
            check_choice("protocol", protocol, PROTOCOLS)
        (name,) = self.named([dataset] if dataset else [])
        return load_classifier(self, name, protocol)

    def features(self, dataset: str) -> tuple[Tensor, Tensor]:
        """Return float32 features of the training images and of the measured ones, (N, F) and (T, F).

        The features of the last data set stay in memory.
        """
        train, queries = self.images.labelled(dataset)
        key = (train.checksum, queries.checksum)
        if key not in self._features:
            self._features.clear()
            check_pair(pair(train), pair(queries))
            self._features[key] = self.embed(train), self.embed(queries)
        return self._features[key]

    def embed(self, images: Dataset) -> Tensor:
        """Return float32 features of a split, (N, F)."""
        with exact_float32(), watched(self.encoder, f"features of {images.name}", len(images)):
            return extract(self.encoder, images.images, batch_size=FEATURE_BATCH, device=self.device)

    def measure(
        self,
        what: ProbeConfig | AlfConfig | KnnConfig | Attack | Sequence[Attack] | None = None,
        *,
        dataset: str | None = None,
        protocol: ProbeProtocol | None = None,
        stop: Stop | None = None,
    ) -> list[Measurement]:
        """Measure a probe, a kNN accuracy or attacks, or all that the configuration asks for (None).

        Attacks are on the classifier that `classifier` returns for the protocol.

        Stored measurements are returned without measuring again. `result.json` and the page are updated.
        """
        from intnacl.runs.page import write_result_and_page

        (name,) = self.named([dataset] if dataset else [])
        if what is None:
            measure_all(self, stop or Stop())
            return [found for kind in KINDS for found in self.measurements.all(kind)]
        if isinstance(what, ProbeConfig):
            measured = [measure_probe(self, name, what)]
        elif isinstance(what, AlfConfig):
            measured = [measure_alf(self, name, what)]
        elif isinstance(what, KnnConfig):
            measured = [measure_knn(self, name, what.k, what.weights)]
        else:
            attacks = [what] if isinstance(what, Attack) else what
            if not isinstance(attacks, Sequence) or not all(isinstance(one, Attack) for one in attacks):
                raise InputError(
                    f"what={what!r} cannot be measured: give a ProbeConfig, an AlfConfig, a KnnConfig, or "
                    "attacks such as named_attack('pgd', 0.002)."
                )
            measured = measure_attacks(self, name, attacks, protocol)
        write_result_and_page(self)
        return measured


def open_run(
    path: str | Path | RunFolder,
    *,
    out: str | Path | None = None,
    device: str | torch.device = "auto",
    root: str | Path | None = None,
    images: RunImages | None = None,
) -> Run:
    """Open a trained run.

    Args:
        path: The run's folder, or one of the names of `intnacl.pretrained()`.
        out: A folder for a copy of the run, which is opened instead, and to which measurements are written.
            Nothing can be written to the runs that ship with the package.
        device: The encoder's device: auto, cpu, cuda, cuda:1 …
        root: The folder of data sets, if it has changed since the run was trained.
        images: Images that are loaded already, for example by the training of the run.
    """
    folder = path if isinstance(path, RunFolder) else RunFolder(located(as_path("path", path)))
    config = folder.read_config()
    folder.require_encoder()
    encoder, header, encoder_sha256 = load_encoder(folder.encoder)
    folder.check_measured_encoder(encoder_sha256)
    if out is not None:
        folder = folder.copy(as_path("out", out))
    placed = device if isinstance(device, torch.device) else pick_device(device)
    if images is None:
        images = RunImages(
            config if root is None else replace(config, root=absolute_root(str(as_path("root", root))))
        )
    images.side = header["image_size"]
    encoder.record = partial(record_of, folder.path)
    return Run(
        folder=folder,
        config=config,
        encoder=encoder.to(placed),
        image_size=images.side,
        encoder_sha256=encoder_sha256,
        trained_on=header.get("data"),
        device=placed,
        images=images,
    )


def from_pretrained(path: str | Path, which: str = "last", *, revision: str | None = None) -> Encoder:
    """Load an encoder in eval mode: pixels in [0, 1] -> features.

    Args:
        path: One of the names of `intnacl.pretrained()`, a run's folder, a folder that `save_pretrained` has
            written, a .safetensors file, or a repository of the Hugging Face Hub, as in "organisation/name".
            An existing path takes precedence, and "organisation/name" is a repository only if there is no
            folder "organisation".
        which: For a run, the encoder after the last epoch ("last") or, if the run held images out, that of
            the epoch with the highest kNN accuracy on them ("best").
        revision: A branch, a tag or a commit of a repository; None: main.
    """
    check_choice("which", which, ("last", "best"))
    found = located(as_path("path", path))
    if revision is not None or (is_repository(str(path)) and not os.path.lexists(found)):
        found = fetch(str(path), revision)
    folder = found
    if which == "best":
        found = found / BEST_ENCODER
        if not found.exists():
            raise InputError(
                f"which='best': {folder} has no {BEST_ENCODER}. Runs that hold images out (--holdout) and "
                "monitor the kNN accuracy on them write it when they end; for others, leave `which` out."
            )
    encoder = load_encoder(found).encoder
    if folder.is_dir():
        encoder.record = partial(record_of, folder)
    return encoder


def record_of(folder: Path, encoder: Encoder, place: str) -> "tuple[str, Result] | None":
    """Return the model card and the figures of a folder's encoder; None if `encoder` has other weights.

    `place` is the path from which the card tells readers to load the encoder.
    """
    from intnacl.runs.export import saved_card

    try:
        same = same_weights(encoder, load_encoder(folder).encoder)
    except InputError:  # the folder was removed in the meantime
        return None
    return saved_card(RunFolder(folder), encoder, place) if same else None
