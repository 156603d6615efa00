"""`result.json`: its content, and which of its rows are shown."""

from collections.abc import Mapping
from typing import NotRequired, TypedDict

from intnacl.attacks.named import ATTACK_NAMES, AttackRow, AttackSettings, eps_text
from intnacl.evaluation.confusion import Confusion
from intnacl.runs.heads import ProbeProtocol
from intnacl.runs.images import Checksums, MeasuredSplit


class ImageCounts(TypedDict):
    """Images of each split of a data set that there are."""

    train: int
    test: NotRequired[int]
    holdout: NotRequired[int]
    """Where it is there, these are measured on in place of the test images."""


class Accuracy(TypedDict):
    """Percent on one data set under the attacks that the protocol names; None: not measured.

    The split, here and in the rows below, is that of the images measured on; "test" where it is missing.
    """

    clean: float
    fgsm: float | None
    pgd: float | None
    protocol: NotRequired[ProbeProtocol]
    """The training of the classifier; slf where it is missing: a linear layer on the frozen encoder."""
    split: NotRequired[MeasuredSplit]


class KnnRow(TypedDict):
    """A kNN accuracy."""

    dataset: str
    split: NotRequired[MeasuredSplit]
    accuracy: float
    k: int
    classes: int
    temperature: NotRequired[float]
    """Of votes weighted by similarity."""
    weights: NotRequired[str]
    """Of votes: "uniform"; missing where they are weighted by similarity."""
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
    """The accuracy once more, under the name that rows of attacks have for it."""
    protocol: str
    """slf, alf, aff, or hcl for HCL's probe; earlier versions had probe and hcl_probe."""
    probe: Mapping[str, object]
    """Its settings; of a fine-tuned encoder, those of fine-tuning."""


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
    """In percent; None where the class has no images."""
    confusion: Confusion


class FewLabels(TypedDict):
    """Accuracies in percent from a share of the labels, on one data set."""

    dataset: str
    split: MeasuredSplit
    labels: float
    """Share of the training images."""
    seed: int
    """Of the choice."""
    images: ImageCounts
    """Labelled images trained on, and images measured on."""
    finetuned: float
    """Of the encoder, trained together with a linear layer."""
    probe: float
    """Of a linear layer on the frozen encoder that fine-tuning began with."""


class Clustering(TypedDict):
    """The pseudo-labels that an encoder was fine-tuned on: k-means on features of the training images."""

    clusters: int
    seed: int
    starts: int
    """Starts of k-means."""
    encoder_sha256: str
    """Of the encoder's file whose features were clustered."""
    data: str
    """The checksum of the images."""
    head_epochs: int
    head_accuracy: float
    """Percent of the pseudo-labels that the linear layer knew before fine-tuning."""
    sha256: NotRequired[str]
    """Of the file with the pseudo-labels."""


class Protocol(TypedDict, total=False):
    """Everything that the figures depend on; earlier versions noted less."""

    dataset: str
    checksums: dict[str, Checksums]
    images: dict[str, ImageCounts]
    encoder_sha256: str
    trained_on: str | None
    ranks: int | None  # of training's last epoch
    seed: int
    epochs: int
    objective: str
    pseudo_labels: Clustering  # of runs with finetune.clusters
    probe: dict[str, object]
    accuracy: dict[str, str]  # the attacks whose figures are `fgsm` and `pgd` of the accuracies
    attacks: list[AttackSettings]
    batch_sizes: dict[str, int]
    precision: dict[str, str | bool]
    versions: dict[str, str]
    hardware: dict[str, str | int | bool]
    date: str


class EvaluationSettings(TypedDict):
    """The settings of measurements that are read from a result."""

    eps: list[float]
    images: int | None


class RunSettings(TypedDict, total=False):
    """The settings of a run that are read from a result, which has all of them."""

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
    """By data set, where the probe was measured by a version that notes them."""
    few_labels: NotRequired[FewLabels]
    """Of a run that was fine-tuned on clean images."""
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
    """Return the protocol of the classifier that a row is about; earlier versions had one alone."""
    return row.get("protocol", "slf")


def attack_rows(result: Result, dataset: str, protocol: str | None = None) -> list[AttackRow]:
    """Return the rows about one classifier on a data set, by default the run's own."""
    wanted = dataset, protocol or own_protocol(result, dataset)
    return [row for row in result["attacks"] if (row["dataset"], protocol_of(row)) == wanted]


def best_rows(result: Result, dataset: str, protocol: str | None = None) -> list[AttackRow]:
    """Return one row for each attack and eps on a data set: of several, the one over the most images.

    The rows are those of one protocol, by default the run's own.

    They are sorted by eps, and at each eps as in `ATTACK_NAMES`; the worst case comes last.
    Worst cases over other attacks on the same images all bound the true one: the lowest is nearest. One
    over a single attack is left out: beside those over several, FGSM's curve would pass for a worst case.
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
    """True if a row is the worst case of a single attack, which is that attack once more."""
    return len(row.get("of", ())) == 1


def radius_text(result: Result) -> str:
    """Return the radius of FGSM and PGD in the accuracies, as "eps 0.02"; empty where there are none.

    Where the attacks are on fewer than all test images, "eps 0.02 on 40 images": the clean accuracy beside
    them is that of all.
    """
    on = on_images(result)
    return "".join(f"eps {eps_text(eps)}{on}" for eps in result["config"]["evaluation"]["eps"][:1])


def on_images(result: Result) -> str:
    """Return " on 40 images" where a run's attacks are on fewer than all test images, else nothing."""
    some = result["config"]["evaluation"]["images"]
    most = max(map(measured_images, result["protocol"]["images"].values()), default=0)
    return f" on {some:,} images" if some is not None and some < most else ""


def clusters_text(result: Result) -> str:
    """Return the number of clusters that took the place of labels in training; empty where none did."""
    found = result["protocol"].get("pseudo_labels")
    return "" if found is None else f"pseudo-labels: {found['clusters']:,} clusters"


def images_measured_on(result: Result) -> str:
    """Return "test images", or "held-out training images" where those stand in for them."""
    return "held-out training images" if result["config"].get("holdout") else "test images"


def measured_images(images: ImageCounts) -> int:
    """Return how many images a data set's figures are on, of the numbers of images of each split."""
    return images["holdout"] if "holdout" in images else images["test"]
