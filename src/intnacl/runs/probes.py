"""Probes and kNN of a run folder; the probe's classifier is kept, so that attacks need no new probe."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from intnacl.console import progress, watched
from intnacl.data import Dataset
from intnacl.data.augment import augment
from intnacl.data.datasets import is_at_path
from intnacl.errors import InputError
from intnacl.evaluation import hcl_probe as augmented_probe
from intnacl.evaluation import knn, probe
from intnacl.evaluation.precision import exact_float32
from intnacl.evaluation.probe import Classifier, ProbeConfig, as_linear
from intnacl.files import parse_json, write_file
from intnacl.runs.folder import digest
from intnacl.runs.measurements import Part, measured, plain, read_part
from intnacl.runs.opened import Subject, pair


def run_probe(subject: Subject, name: str, config: ProbeConfig | None = None) -> Part:
    """The linear probe on a data set, under the run's protocol or another one."""
    config = config or subject.config.probe
    settings = probe_settings(subject, name, config)
    path = classifier_path(subject, name, config)

    def _work() -> dict[str, Any]:
        train, test = subject.load(name)
        train_NF, test_TF = subject.features(train, test)
        with progress(f"probe on {name}, passes", config.passes) as advance:
            linear, figures = probe.fit(
                train_NF, pair(train)[1], test_TF, pair(test)[1], config, each_pass=lambda: advance(1)
            )
        _save_linear(linear, settings, path)
        return figures | _data_facts(train, test)

    return measured_now(subject, "probe", settings, _work, again=not _fits(path, settings))


def run_hcl_probe(subject: Subject, name: str, epochs: int | None = None) -> Part:
    """HCL's probe (augmented images, batch norm in train mode), to be set beside the other."""
    config = augmented_probe.HCL
    epochs = config.epochs if epochs is None else epochs
    config = replace(config, epochs=epochs, seed=subject.config.probe.seed)
    settings = probe_settings(subject, name, config) | {"augment": asdict(subject.config.augment)}

    def _work() -> dict[str, Any]:
        train, test = subject.load(name)
        count = 1 + epochs * (len(train) + len(test)) + len(test)
        with exact_float32(), watched(subject.encoder, f"HCL's probe on {name}, images", count):
            _, figures = augmented_probe.evaluate(
                subject.encoder, pair(train), pair(test), _augmenter(subject), config, device=subject.device
            )
        return figures | _data_facts(train, test)

    return measured_now(subject, "hcl_probe", settings, _work)


def run_knn(subject: Subject, name: str, k: int | None = None) -> Part:
    """The weighted kNN accuracy on a data set, without any training."""
    settings = {"dataset": name, "encoder": subject.checksum, "k": k}

    def _work() -> dict[str, Any]:
        train, test = subject.load(name)
        config = knn.KnnConfig(k=k) if k is not None else knn.suited(len(train), len(train.classes))
        train_NF, test_TF = subject.features(train, test)
        with exact_float32():
            figures = knn.score(train_NF, pair(train)[1], test_TF, pair(test)[1], config)
        return figures | {"temperature": config.temperature} | _data_facts(train, test)

    return measured_now(subject, "knn", settings, _work)


def load_classifier(subject: Subject, name: str) -> Classifier:
    """The classifier of the run's probe on a data set; the probe is run if it has not been yet."""
    run_probe(subject, name)
    return _stored_classifier(subject, name)


def probed(subject: Subject, name: str) -> tuple[Classifier, Dataset, Dataset]:
    """The classifier of the run's probe, and the images that it is of, training and test.

    They must be those of then: another root may have another data set of the same name.
    """
    train, test = subject.load(name)
    if run_probe(subject, name).figures["checksums"] != checksums(train, test):
        path = classifier_path(subject, name, subject.config.probe)
        raise InputError(
            f"dataset {name!r} has other images or labels than its probe was made with: give the --root "
            f"of then, or delete {path} and probe it again."
        )
    return _stored_classifier(subject, name), train, test


def _stored_classifier(subject: Subject, name: str) -> Classifier:
    from safetensors.torch import load_file

    config = subject.config.probe
    state = load_file(classifier_path(subject, name, config), device=str(subject.device))
    linear = as_linear(state["weight"], state["bias"]).requires_grad_(False)
    return Classifier(subject.encoder, linear, normalize=config.normalize).eval()


def probe_settings(subject: Subject, name: str, config: ProbeConfig) -> dict[str, Any]:
    """What a probe's figures depend on, apart from the images themselves."""
    return {"dataset": name, "encoder": subject.checksum, "probe": asdict(config)}


def classifier_path(subject: Subject, name: str, config: ProbeConfig) -> Path:
    """RUN/probe-DATASET.safetensors for the run's protocol; other protocols add a digest."""
    own = config == subject.config.probe
    return subject.folder.classifier(name, "" if own else digest(asdict(config)))


def _augmenter(subject: Subject) -> augmented_probe.Augment:
    """The run's own views, one of each image."""
    config = subject.config

    def _view(images: Tensor, step: int) -> Tensor:
        rows = torch.arange(len(images), device=images.device)
        clock = torch.tensor(step, device=images.device)
        return augment(images, config.augment, seed=config.probe.seed, step=clock, view=0, rows=rows)

    return _view


def _data_facts(train: Dataset, test: Dataset) -> dict[str, Any]:
    return {
        "images": {"train": len(train), "test": len(test)},
        "checksums": checksums(train, test),
        "class_names": list(test.classes),
    }


def checksums(train: Dataset, test: Dataset) -> dict[str, str]:
    """What tells images and labels from others."""
    return {"train": train.checksum, "test": test.checksum}


def measured_now(
    subject: Subject, kind: str, settings: dict[str, Any], work: Callable[[], dict[str, Any]], *,
    again: bool = False, earlier: Callable[[], float] = lambda: 0.0,
) -> Part:  # fmt: skip
    """The part of these settings, measured again also where its images have changed since."""
    again = again or _is_stale(subject, kind, settings)
    return measured(subject.folder, kind, settings, subject.device, work, again=again, earlier=earlier)


def _is_stale(subject: Subject, kind: str, settings: dict[str, Any]) -> bool:
    """Whether a part is of other images than lie at its data set's path now.

    A set with a name is not looked up: its parts are to be of the images of its probe.
    """
    part, name = read_part(subject.folder, kind, settings), settings["dataset"]
    if part is None or "checksums" not in part.figures:
        return False
    if is_at_path(name):
        return bool(part.figures["checksums"] != checksums(*subject.load(name)))
    own = read_part(subject.folder, "probe", probe_settings(subject, name, subject.config.probe))
    return own is not None and bool(part.figures["checksums"] != own.figures["checksums"])


def _save_linear(linear: nn.Linear, settings: dict[str, Any], path: Path) -> None:
    from safetensors.torch import save

    state = {k: v.detach().cpu().contiguous() for k, v in linear.state_dict().items()}
    write_file(path, save(state, {"intnacl": json.dumps(settings, sort_keys=True)}))


def _fits(path: Path, settings: dict[str, Any]) -> bool:
    """Whether a whole classifier of these settings is stored."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as handle:
            return bool(parse_json((handle.metadata() or {})["intnacl"]) == plain(settings))
    except (OSError, SafetensorError, KeyError, ValueError):
        return False
