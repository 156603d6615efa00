"""Measurements of a run's encoder: probes, kNN and corruptions, and all that its configuration asks for."""

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from intnacl.console import progress, watched
from intnacl.data.augment import view_of_step
from intnacl.data.corruptions import SEVERITIES
from intnacl.errors import InputError, check_choice
from intnacl.evaluation import adversarial_probe, corruptions, hcl_probe, knn, probe
from intnacl.evaluation.adversarial_probe import AlfConfig
from intnacl.evaluation.confusion import confusion
from intnacl.evaluation.precision import exact_float32
from intnacl.evaluation.probe import Classifier, ProbeConfig
from intnacl.runs.attack import describe, measure_attacks, planned_attacks
from intnacl.runs.folder import digest
from intnacl.runs.heads import FINETUNED, ProbeProtocol, is_stored, load_head, save_head
from intnacl.runs.images import LabelledPair, pair
from intnacl.runs.measurement import Figures, Measurement, Settings, plain
from intnacl.runs.measurements import benchmark_views
from intnacl.runs.objective import load_begun, training_images
from intnacl.training.stop import Stop

if TYPE_CHECKING:
    from intnacl.runs.opened import Run

Say = Callable[[str], None]


def measure_all(run: "Run", stop: Stop, say: Say = lambda text: None) -> str | None:
    """Measure what the configuration asks for, then write result and page; return the reason of a stop."""
    from intnacl.runs.page import write_result_and_page

    for name in run.datasets:
        stages: dict[str, Callable[[], list[Measurement]]] = {
            f"probe {name}": lambda name=name: [measure_probe(run, name)],  # type: ignore[misc]
            f"knn {name}": lambda name=name: [measure_own_knn(run, name)],  # type: ignore[misc]
        }
        if run.measurements.own_protocol(name) == "sff":
            stages[f"probe {name}, encoder before fine-tuning"] = lambda name=name: [  # type: ignore[misc]
                measure_frozen_probe(run, name)
            ]
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
    assert found.is_whole, f"{run.folder}: all stages are done, but measurements are missing"
    return None


def measure_probe(run: "Run", dataset: str, config: ProbeConfig | None = None) -> Measurement:
    """Fit the linear probe on a data set, by default with the run's settings, and store its layer.

    A fine-tuned encoder already has a layer for its own data set: by default, this layer is measured.
    """
    if config is None and run.measurements.own_protocol(dataset) in FINETUNED:
        return _measure_finetuned(run, dataset)
    return _fit_probe(run, dataset, config or run.config.probe)


def _fit_probe(run: "Run", dataset: str, config: ProbeConfig) -> Measurement:
    settings = run.measurements.probe_settings(dataset, config)
    path = _classifier_path(run, dataset, config)

    def work() -> Figures:
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
        checksum = save_head(linear, path, settings)
        return cast(Figures, figures | _facts(images) | {"classifier_sha256": checksum})

    return run.measurements.measure(
        "probe", settings, run.images, run.device, work, is_usable=lambda: is_stored(path, plain(settings))
    )


def _measure_finetuned(run: "Run", dataset: str) -> Measurement:
    """Measure the layer that was trained together with the encoder."""
    settings = run.measurements.classifier_settings(dataset)

    def work() -> Figures:
        images = run.images.labelled(dataset)
        linear = load_head(run.folder.head, None).to(run.device)
        with exact_float32():
            predicted = [linear(features_NF).argmax(dim=1).cpu() for features_NF in run.features(dataset)]
        train, queries = (
            100 * int((predicted_N == pair(split)[1]).sum()) / len(split)
            for predicted_N, split in zip(predicted, images, strict=True)
        )
        figures: Figures = {
            "accuracy": queries,
            "train_accuracy": train,
            "classes": linear.out_features,
            "confusion": confusion(predicted[1], pair(images.queries)[1], linear.out_features),
        }
        return cast(Figures, {**figures, **_facts(images), "classifier_sha256": settings["head"]})

    return run.measurements.measure("probe", settings, run.images, run.device, work)


def measure_frozen_probe(run: "Run", dataset: str) -> Measurement:
    """Fit the run's probe with the same labels on the frozen encoder from which fine-tuning started."""
    settings = run.measurements.frozen_probe_settings(dataset)

    def work() -> Figures:
        images, train = run.images.labelled(dataset), training_images(run.config, run.images)
        begun = replace(run, encoder=load_begun(run.config).encoder.to(run.device))
        features = begun.embed(train), begun.embed(images.queries)
        _, figures = probe.fit(
            features[0], pair(train)[1], features[1], pair(images.queries)[1], run.config.probe
        )
        counts = {"train": len(train), images.split: len(images.queries)}
        return cast(Figures, {**figures, **_facts(images), "images": counts})

    return run.measurements.measure("frozen_probe", settings, run.images, run.device, work)


def measure_alf(run: "Run", dataset: str, config: AlfConfig | None = None) -> Measurement:
    """Train a linear layer on attacked images, by default with the run's settings, and store it."""
    config = config or run.config.alf
    settings = run.measurements.alf_settings(dataset, config)
    path, views = _alf_path(run, dataset, config), benchmark_views(run.config, run.image_size)

    def work() -> Figures:
        images = run.images.labelled(dataset)
        count = 1 + len(images.queries) + config.epochs * len(images.train) * (config.steps + 1)
        augmented = partial(view_of_step, views, config.seed)
        with exact_float32(), watched(run.encoder, f"adversarial probe on {dataset}, images", count):
            classifier, figures = adversarial_probe.evaluate(
                run.encoder, pair(images.train), pair(images.queries), augmented, config, device=run.device
            )
        checksum = save_head(classifier.linear, path, settings)
        return cast(Figures, figures | _facts(images) | {"classifier_sha256": checksum})

    return run.measurements.measure(
        "alf", settings, run.images, run.device, work, is_usable=lambda: is_stored(path, plain(settings))
    )


def measure_hcl_probe(run: "Run", dataset: str, epochs: int | None = None) -> Measurement:
    """Fit HCL's probe (augmented images, batch norm in train mode), for comparison with the run's own."""
    config = replace(hcl_probe.HCL, seed=run.config.probe.seed)
    config = config if epochs is None else replace(config, epochs=epochs)
    views = run.config.augment
    settings: Settings = {**run.measurements.probe_settings(dataset, config), "augment": asdict(views)}

    def work() -> Figures:
        images = run.images.labelled(dataset)
        train, test = (len(split) for split in images)
        count = 1 + config.epochs * (train + test) + test
        augmented = partial(view_of_step, views, config.seed)
        with exact_float32(), watched(run.encoder, f"HCL's probe on {dataset}, images", count):
            _, figures = hcl_probe.evaluate(
                run.encoder, pair(images.train), pair(images.queries), augmented, config, device=run.device
            )
        return cast(Figures, figures | _facts(images))

    return run.measurements.measure("hcl_probe", settings, run.images, run.device, work)


def measure_own_knn(run: "Run", dataset: str) -> Measurement:
    """Classify a data set by nearest neighbours with the run's settings."""
    wanted = run.config.evaluation
    return measure_knn(run, dataset, wanted.knn_k, wanted.knn_weights)


def measure_knn(run: "Run", dataset: str, k: int | None = None, weights: str = "exp") -> Measurement:
    """Classify a data set by its k nearest neighbours; None chooses a k that suits the data set."""
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


def measure_corruption(
    run: "Run", dataset: str, corruption: str, protocol: ProbeProtocol | None = None
) -> Measurement:
    """Measure a classifier of the run on images with a common corruption, at five severities."""
    settings: Settings = {
        **run.measurements.classifier_settings(dataset, protocol),
        "corruption": corruption,
        "seed": 0,
    }

    def work() -> Figures:
        images, classifier = run.images.labelled(dataset), run.classifier(dataset, protocol=protocol)
        total = (1 + len(SEVERITIES)) * len(images.queries)
        with progress(f"{corruption} on {dataset}, images", total) as advance:
            figures = corruptions.evaluate(
                classifier,
                *pair(images.queries),
                corruption,
                seed=settings["seed"],
                device=run.device,
                each=advance,
            )
        return cast(Figures, {**figures, **_facts(images)})

    return run.measurements.measure("corruptions", settings, run.images, run.device, work)


def load_classifier(run: "Run", dataset: str, protocol: ProbeProtocol | None = None) -> Classifier:
    """Return a run's classifier of a protocol on a data set; fit its layer if that has not been done.

    If the images are loaded, they must be those that the layer was fitted on: another root may hold another
    data set of the same name.
    """
    protocol = protocol or run.measurements.own_protocol(dataset)
    run.measurements.classifier_settings(dataset, protocol)  # raises if there is no such classifier
    if protocol == "alf":
        found, path = measure_alf(run, dataset), _alf_path(run, dataset, run.config.alf)
    elif protocol in FINETUNED:
        found, path = measure_probe(run, dataset), run.folder.head
    else:
        found, path = (
            _fit_probe(run, dataset, run.config.probe),
            _classifier_path(run, dataset, run.config.probe),
        )
    if run.images.is_loaded(dataset) and found.figures["checksums"] != run.images.checksums(dataset):
        raise InputError(
            f"dataset {dataset!r} has other images or labels than its probe was fitted on: give the --root "
            f"used at that time, or delete {path} and probe it again."
        )
    return _classifier(run, path, found)


def load_fitted(run: "Run", dataset: str) -> tuple[Classifier, tuple[str, ...]]:
    """Return a run's own classifier on a data set, and the names of its classes; fit it if necessary.

    A classifier that is fitted already is loaded without the images of the data set.
    """
    protocol = run.measurements.own_protocol(dataset)
    settings = run.measurements.classifier_settings(dataset, protocol)
    found = run.measurements.find("probe", settings)
    path = run.folder.head if protocol in FINETUNED else _classifier_path(run, dataset, run.config.probe)
    if found is None or not path.exists():
        found = measure_probe(run, dataset)
    names = found.figures.get("class_names") or run.images.labelled(dataset).queries.classes
    return _classifier(run, path, found), tuple(names)


def _classifier(run: "Run", path: Path, found: Measurement) -> Classifier:
    """Return the encoder with a stored layer."""
    linear = load_head(path, found.figures.get("classifier_sha256")).to(run.device)
    normalize = found.protocol == "slf" and run.config.probe.normalize
    return Classifier(run.encoder, linear, normalize=normalize).eval()


def fitted_classifier(run: "Run", dataset: str) -> tuple[Classifier, tuple[str, ...]] | None:
    """Return the run's own classifier on a data set with the names of its classes, if it has been fitted."""
    settings = run.measurements.classifier_settings(dataset)
    found = run.measurements.find("probe", settings)
    is_finetuned = run.measurements.own_protocol(dataset) in FINETUNED
    path = run.folder.head if is_finetuned else _classifier_path(run, dataset, run.config.probe)
    if found is None or not (is_finetuned or is_stored(path, plain(settings))):
        return None
    classifier = _classifier(run, path, found)
    names = found.figures.get("class_names") or map(str, range(classifier.linear.out_features))
    return classifier, tuple(names)


def _classifier_path(run: "Run", dataset: str, config: ProbeConfig) -> Path:
    return run.folder.classifier(dataset, "" if config == run.config.probe else digest(asdict(config)))


def _alf_path(run: "Run", dataset: str, config: AlfConfig) -> Path:
    mark = "alf" if config == run.config.alf else f"alf-{digest(asdict(config))}"
    return run.folder.classifier(dataset, mark)


def _facts(images: LabelledPair) -> Figures:
    """Return the facts about the images that every measurement on them notes."""
    return {
        "images": {split.split: len(split) for split in images},
        "checksums": images.checksums,
        "split": images.split,
        "class_names": list(images.queries.classes),
    }
