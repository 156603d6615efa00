"""Measurements of a run's frozen encoder: linear probe, HCL's probe and kNN, and all that a run asks for."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from intnacl.console import progress, watched
from intnacl.data.augment import augment
from intnacl.errors import InputError, check_choice
from intnacl.evaluation import hcl_probe, knn, probe
from intnacl.evaluation.precision import exact_float32
from intnacl.evaluation.probe import Classifier, ProbeConfig, as_linear
from intnacl.files import parse_json, read_file, write_file
from intnacl.models.weights import parse_tensors
from intnacl.runs.attack import describe, measure_attacks, planned_attacks
from intnacl.runs.folder import digest
from intnacl.runs.images import LabelledPair, pair
from intnacl.runs.measurements import Figures, Measurement, Settings, plain
from intnacl.training.stop import Stop

if TYPE_CHECKING:
    from intnacl.runs.opened import Run

Say = Callable[[str], None]


def measure_all(run: "Run", stop: Stop, say: Say = lambda text: None) -> str | None:
    """Measure what the run's configuration asks for, then write its result and page; the reason of a stop."""
    from intnacl.runs.page import write_result_and_page

    for name in run.datasets:
        stages: dict[str, Callable[[], list[Measurement]]] = {
            f"probe {name}": lambda name=name: [measure_probe(run, name)],  # type: ignore[misc]
            f"knn {name}": lambda name=name: [measure_own_knn(run, name)],  # type: ignore[misc]
        }
        for attacks in planned_attacks(run.config.evaluation):
            stages[describe(name, attacks)] = lambda name=name, attacks=attacks: measure_attacks(  # type: ignore[misc]
                run, name, attacks
            )
        for stage, work in stages.items():
            if stop.due():
                return stop.reason
            with stop.at_once():
                say(f"{stage}: {sum(found.time_s for found in work()):.1f} s")
        run.images.release(name)
    if stop.reason is not None:
        return stop.reason
    found = write_result_and_page(run)
    assert found.is_whole, f"{run.folder}: all stages are done, but not all is measured"
    return None


def measure_probe(run: "Run", dataset: str, config: ProbeConfig | None = None) -> Measurement:
    """Fit the linear probe on a data set, by default as the run's configuration says; its layer is stored."""
    config = config or run.config.probe
    settings = run.measurements.probe_settings(dataset, config)
    path = _classifier_path(run, dataset, config)

    def work() -> Figures:
        from safetensors.torch import save

        images = run.images.labelled(dataset)
        train_NF, test_TF = run.features(dataset)
        with progress(f"probe on {dataset}, passes", config.passes) as advance:
            linear, figures = probe.fit(
                train_NF,
                pair(images.train)[1],
                test_TF,
                pair(images.queries)[1],
                config,
                each_pass=lambda: advance(1),
            )
        state = {name: value.detach().cpu().contiguous() for name, value in linear.state_dict().items()}
        content = save(state, {"intnacl": json.dumps(settings, sort_keys=True)})
        write_file(path, content)
        checksum = hashlib.sha256(content).hexdigest()
        return cast(Figures, figures | _facts(images) | {"classifier_sha256": checksum})

    return run.measurements.measure(
        "probe", settings, run.images, run.device, work, is_usable=lambda: _is_stored(path, settings)
    )


def measure_hcl_probe(run: "Run", dataset: str, epochs: int | None = None) -> Measurement:
    """Fit HCL's probe (augmented images, batch norm in train mode), to be set beside the other."""
    config = replace(hcl_probe.HCL, seed=run.config.probe.seed)
    config = config if epochs is None else replace(config, epochs=epochs)
    views = run.config.augment
    settings: Settings = {**run.measurements.probe_settings(dataset, config), "augment": asdict(views)}

    def view(images: Tensor, step: int) -> Tensor:
        rows = torch.arange(len(images), device=images.device)
        clock = torch.tensor(step, device=images.device)
        return augment(images, views, seed=config.seed, step=clock, view=0, rows=rows)

    def work() -> Figures:
        images = run.images.labelled(dataset)
        train, test = (len(split) for split in images)
        count = 1 + config.epochs * (train + test) + test
        with exact_float32(), watched(run.encoder, f"HCL's probe on {dataset}, images", count):
            _, figures = hcl_probe.evaluate(
                run.encoder, pair(images.train), pair(images.queries), view, config, device=run.device
            )
        return cast(Figures, figures | _facts(images))

    return run.measurements.measure("hcl_probe", settings, run.images, run.device, work)


def measure_own_knn(run: "Run", dataset: str) -> Measurement:
    """Classify a data set by nearest neighbours as the run's configuration says."""
    wanted = run.config.evaluation
    return measure_knn(run, dataset, wanted.knn_k, wanted.knn_weights)


def measure_knn(run: "Run", dataset: str, k: int | None = None, weights: str = "exp") -> Measurement:
    """Classify a data set by nearest neighbours, as many as suit it where k is None."""
    check_choice("weights", weights, knn.WEIGHTS)

    def work() -> Figures:
        images = run.images.labelled(dataset)
        suited = knn.suited(len(images.train), len(images.train.classes))
        config = replace(suited if k is None else knn.KnnConfig(k=k), weights=weights)
        train_NF, test_TF = run.features(dataset)
        with exact_float32():
            figures = knn.score(train_NF, pair(images.train)[1], test_TF, pair(images.queries)[1], config)
        vote = {"temperature": config.temperature} if weights == "exp" else {"weights": weights}
        return cast(Figures, {**figures, **vote, **_facts(images)})

    settings = run.measurements.knn_settings(dataset, k, weights)
    return run.measurements.measure("knn", settings, run.images, run.device, work)


def load_classifier(run: "Run", dataset: str) -> Classifier:
    """Return the classifier of the run's probe on a data set; the probe is fitted if it has not been yet.

    Where the images are loaded they must be those that it was fitted on: another root may hold another data
    set of the same name.
    """
    found, config = measure_probe(run, dataset), run.config.probe
    path = _classifier_path(run, dataset, config)
    if run.images.is_loaded(dataset) and found.figures["checksums"] != run.images.checksums(dataset):
        raise InputError(
            f"dataset {dataset!r} has other images or labels than its probe was made with: give the --root "
            f"of then, or delete {path} and probe it again."
        )
    content, noted = read_file(path), found.figures.get("classifier_sha256")
    if noted not in (None, hashlib.sha256(content).hexdigest()):
        raise InputError(
            f"{path} is damaged: its SHA-256 is not the one noted when the probe was fitted. Bring it back "
            "from a copy, or delete it, and the probe is fitted again."
        )
    _, state = parse_tensors(content)
    linear = as_linear(state["weight"], state["bias"]).requires_grad_(False).to(run.device)
    return Classifier(run.encoder, linear, normalize=config.normalize).eval()


def _classifier_path(run: "Run", dataset: str, config: ProbeConfig) -> Path:
    return run.folder.classifier(dataset, "" if config == run.config.probe else digest(asdict(config)))


def _is_stored(path: Path, settings: Settings) -> bool:
    """True if a whole classifier of these settings is stored."""
    from safetensors import SafetensorError

    try:
        metadata, tensors = parse_tensors(read_file(path))
        layer = tensors["weight"].ndim, tensors["bias"].shape
        same = bool(parse_json(metadata["intnacl"]) == plain(settings))
        return same and layer == (2, tensors["weight"].shape[:1])
    except (OSError, SafetensorError, KeyError, ValueError):
        return False


def _facts(images: LabelledPair) -> Figures:
    """Return what is noted of the images with every measurement on them."""
    return {
        "images": {split.split: len(split) for split in images},
        "checksums": images.checksums,
        "split": images.split,
        "class_names": list(images.queries.classes),
    }
