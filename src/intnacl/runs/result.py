"""`result.json`: its content, and the choice of its rows for pages and tables."""

from collections.abc import Mapping
from typing import NotRequired, TypedDict

from intnacl.attacks.named import ATTACK_NAMES, AttackRow, AttackSettings, eps_text
from intnacl.evaluation.confusion import Confusion
from intnacl.runs.heads import ProbeProtocol
from intnacl.runs.images import Checksums, MeasuredSplit


class ImageCounts(TypedDict):
    """Number of images in each split of a data set."""

    train: int
    test: NotRequired[int]
    holdout: NotRequired[int]
    """If present, measurements are on these images instead of the test images."""


class Accuracy(TypedDict):
    """Percent on one data set under the attacks that the protocol names; None: not measured.

    The split, here and in the rows below, is that of the measured images; "test" if it is missing.
    """

    clean: float
    fgsm: float | None
    pgd: float | None
    protocol: NotRequired[ProbeProtocol]
    """The training of the classifier; "slf", a linear layer on the frozen encoder, if it is missing."""
    split: NotRequired[MeasuredSplit]


class KnnRow(TypedDict):
    """A kNN accuracy."""

    dataset: str
    split: NotRequired[MeasuredSplit]
    accuracy: float
    k: int
    classes: int
    temperature: NotRequired[float]
    """Temperature of votes that are weighted by similarity."""
    weights: NotRequired[str]
    """Weights of votes: "uniform"; missing if they are weighted by similarity."""
    images: ImageCounts


class ProbeRow(TypedDict, total=False):
    """A probe's figures without its curve."""

    dataset: str
    split: MeasuredSplit
    accuracy: float
    train_accuracy: float
    accuracy_restored: float
    best_accuracy: float
    best_epoch: int
    classes: int
    images: ImageCounts
    clean: float
    """The same as `accuracy`, under the name that attack rows use."""
    protocol: str
    """slf, alf, aff, or hcl for HCL's probe; earlier versions had probe and hcl_probe."""
    probe: Mapping[str, object]
    """The probe's settings; for a fine-tuned encoder, those of fine-tuning."""


class CorruptionRow(TypedDict):
    """Accuracy of a classifier on corrupted images."""

    dataset: str
    protocol: ProbeProtocol
    split: MeasuredSplit
    images: int
    clean: float
    accuracy: float | None
    """The mean over all 15 corruptions and five severities; None until all are measured."""
    by_corruption: dict[str, float]
    by_severity: list[float]
    """The mean over the corruptions measured, from severity 1 to 5."""


class ClassFigures(TypedDict):
    """Figures of a data set's classes, from the run's own probe on clean images; lists are by class."""

    split: MeasuredSplit
    protocol: ProbeProtocol
    balanced_accuracy: float
    """Mean of the classes' accuracies, in percent."""
    names: list[str]
    images: list[int]
    """Measured images of each class."""
    accuracy: list[float | None]
    """In percent; None if the class has no images."""
    confusion: Confusion


class FewLabels(TypedDict):
    """Accuracies in percent from a share of the labels, on one data set."""

    dataset: str
    split: MeasuredSplit
    labels: float
    """Share of the training images whose labels are used."""
    seed: int
    """Seed of the choice of images."""
    images: ImageCounts
    """Labelled images trained on, and images measured on."""
    finetuned: float
    """Accuracy of the encoder trained together with a linear layer."""
    probe: float
    """Accuracy of a linear layer on the frozen encoder from which fine-tuning started."""


class Clustering(TypedDict):
    """The pseudo-labels that an encoder was fine-tuned on: k-means on features of the training images."""

    clusters: int
    seed: int
    starts: int
    """Starts of k-means."""
    encoder_sha256: str
    """SHA-256 of the encoder whose features were clustered."""
    data: str
    """The checksum of the images."""
    head_epochs: int
    head_accuracy: float
    """Percent of the pseudo-labels that the linear layer predicted before fine-tuning."""
    sha256: NotRequired[str]
    """SHA-256 of the file with the pseudo-labels."""


class Protocol(TypedDict, total=False):
    """Everything that the figures depend on; earlier versions noted less."""

    dataset: str
    checksums: dict[str, Checksums]
    images: dict[str, ImageCounts]
    encoder_sha256: str
    trained_on: str | None
    ranks: int | None  # in training's last epoch
    seed: int
    epochs: int
    objective: str
    pseudo_labels: Clustering  # of runs with finetune.clusters
    probe: dict[str, object]
    accuracy: dict[str, str]  # the attacks behind `fgsm` and `pgd` in the accuracies
    attacks: list[AttackSettings]
    batch_sizes: dict[str, int]
    precision: dict[str, str | bool]
    versions: dict[str, str]
    hardware: dict[str, str | int | bool]
    date: str


class EvaluationSettings(TypedDict):
    """The settings of measurements that are read from a result's configuration."""

    eps: list[float]
    images: int | None


class RunSettings(TypedDict, total=False):
    """The settings of a run that are read from a result, which holds all settings."""

    dataset: str
    holdout: int
    evaluation: EvaluationSettings


class Result(TypedDict):
    """The content of `result.json`; earlier versions wrote less."""

    accuracy: dict[str, Accuracy]
    attacks: list[AttackRow]
    knn: NotRequired[list[KnnRow]]
    probes: NotRequired[list[ProbeRow]]
    corruptions: NotRequired[list[CorruptionRow]]
    classes: NotRequired[dict[str, ClassFigures]]
    """By data set; earlier versions did not write them."""
    few_labels: NotRequired[FewLabels]
    """Only for a run that was fine-tuned on clean images."""
    warnings: NotRequired[list[str]]
    time_s: dict[str, float]
    """Seconds by stage."""
    protocol: Protocol
    config: RunSettings


def protocols_of(result: Result, dataset: str) -> list[str]:
    """Return the protocols of the classifiers that were attacked on a data set, the run's own first."""
    found = [protocol_of(row) for row in result["attacks"] if row["dataset"] == dataset]
    return list(dict.fromkeys([own_protocol(result, dataset), *found]))


def own_protocol(result: Result, dataset: str) -> str:
    """Return the protocol of the run's own classifier on a data set."""
    row = result.get("accuracy", {}).get(dataset)
    return row.get("protocol", "slf") if row else "slf"


def protocol_of(row: AttackRow) -> str:
    """Return the protocol of a row's classifier; earlier versions only had slf."""
    return row.get("protocol", "slf")


def attack_rows(result: Result, dataset: str, protocol: str | None = None) -> list[AttackRow]:
    """Return the rows about one classifier on a data set, by default the run's own."""
    wanted = dataset, protocol or own_protocol(result, dataset)
    return [row for row in result["attacks"] if (row["dataset"], protocol_of(row)) == wanted]


def best_rows(result: Result, dataset: str, protocol: str | None = None) -> list[AttackRow]:
    """Return one row for each attack and eps on a data set: among several, the one on the most images.

    The rows are those of one protocol, by default the run's own. They are sorted by eps, and at each eps as
    in `ATTACK_NAMES`; the worst case comes last. Worst cases over different attacks on the same images all
    bound the true one from above, so the lowest is the tightest. Worst cases over a single attack are left
    out, or FGSM's curve would look like a worst case over several attacks.
    """
    chosen: dict[tuple[str, float], AttackRow] = {}
    rows = attack_rows(result, dataset, protocol)
    for row in sorted(rows, key=lambda row: (row["images"], -row["accuracy"])):
        if not of_one_attack(row):
            chosen[row["name"], row["eps"]] = row
    place = {name: number for number, name in enumerate(ATTACK_NAMES)}

    def order(row: AttackRow) -> tuple[float, bool, int]:
        return row["eps"], row["name"] == "worst_case", place.get(row["name"], len(place))

    return sorted(chosen.values(), key=order)


def of_one_attack(row: AttackRow) -> bool:
    """Return True if a row is the worst case over a single attack, which repeats that attack."""
    return len(row.get("of", ())) == 1


def radius_text(result: Result) -> str:
    """Return the radius of FGSM and PGD in the accuracies, as "eps 0.02"; empty if there is none.

    If fewer than all test images were attacked, the text is "eps 0.02 on 40 images", because the clean
    accuracy beside it is on all of them.
    """
    on = on_images(result)
    return "".join(f"eps {eps_text(eps)}{on}" for eps in result["config"]["evaluation"]["eps"][:1])


def on_images(result: Result) -> str:
    """Return " on 40 images" if a run's attacks are on fewer than all test images, else an empty text."""
    attacked = result["config"]["evaluation"]["images"]
    most = max(map(measured_images, result["protocol"]["images"].values()), default=0)
    return f" on {attacked:,} images" if attacked is not None and attacked < most else ""


def clusters_text(result: Result) -> str:
    """Return a text with the number of clusters that replaced labels in training; empty if none did."""
    found = result["protocol"].get("pseudo_labels")
    return "" if found is None else f"pseudo-labels: {found['clusters']:,} clusters"


def images_measured_on(result: Result) -> str:
    """Return "test images", or "held-out training images" if the run was measured on those."""
    return "held-out training images" if result["config"].get("holdout") else "test images"


def measured_images(images: ImageCounts) -> int:
    """Return the number of measured images of a data set, given the number in each split."""
    return images["holdout"] if "holdout" in images else images["test"]
