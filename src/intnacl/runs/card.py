"""The model card of an exported encoder: Markdown, below the header that the Hugging Face Hub reads."""

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from statistics import fmean
from typing import Any, cast

from intnacl.attacks.named import ATTACK_NAMES, eps_text
from intnacl.console import two_decimals
from intnacl.data.corruptions import CORRUPTIONS
from intnacl.data.datasets import is_at_path
from intnacl.errors import printable
from intnacl.models.hub import CARD_MARK
from intnacl.runs.config import RunConfig, loss_name
from intnacl.runs.heads import PROTOCOL_NAMES
from intnacl.runs.page import accuracy_rows, attack_heads, escape_markdown
from intnacl.runs.result import (
    Result,
    best_rows,
    clusters_text,
    images_measured_on,
    own_protocol,
    protocols_of,
    radius_text,
)

ON_HUB = {
    "cifar10": "uoft-cs/cifar10", "cifar100": "uoft-cs/cifar100", "tinyimagenet": "zh-plus/tiny-imagenet",
}  # fmt: skip
TASKS = {"slf": "linear probe on frozen features", "aff": "fine-tuned classifier"}
CLASSIFIERS = (
    "Classifiers: SLF, a linear layer on frozen features of clean images; ALF, one trained on attacked "
    "images; AFF, encoder and layer fine-tuned together on attacked images. Corruptions: means of five "
    "severities."
)
LIMITS = (
    "Accuracy under attack holds for the radii and attacks above, against the linear probe; a larger radius "
    "or a stronger attack leaves less. Nothing is known about what was not measured here: other domains, "
    "other sizes of images, fairness."
)
NO_LICENSE = (
    "No license is chosen yet: set `license` in the header, consistent with the terms of the training images."
)


def model_card(
    config: RunConfig,
    result: Result,
    usage: str,
    *,
    library: str = "intnacl",
    license: str = "unknown",
    where: str = "In the folder of this file",
) -> str:
    """Return the card: what the encoder is, how to load it, its figures and their protocol, its training.

    Args:
        config: The run's configuration.
        result: Everything that is measured so far.
        usage: Code that loads the encoder and computes features.
        library: The library whose model `usage` creates.
        license: The Hub's identifier of the license.
        where: The place or condition in which `usage` runs.
    """
    dataset = escape_markdown(public_name(config.dataset))
    encoder, images = config.encoder.name, result["protocol"]["images"].get(config.dataset)
    count = f", {images['train']:,} images" if images else ""
    labelled = config.objective in ("supervised", "finetune") and not config.finetune.clusters
    labels = "with labels" if labelled else "without labels"
    parts = [
        f"---{_yaml(_header(config, result, library, license))}\n---",
        f"# {encoder}, {loss_name(config)}, {dataset}",
        f"{CARD_MARK}, {labels}, for {config.train.epochs} epochs on {dataset}{count}. It "
        "turns images into features: for a linear classifier, nearest neighbours, or search.",
        f"## Use\n\n{where}:\n\n```python\n{usage}\n```",
        f"## Figures\n\n{_figures(result)}",
        f"## Training\n\n{_training(config)}\n\n[config.json](config.json) holds all settings.",
        f"## Limits\n\n{LIMITS}",
        *([NO_LICENSE] if license == "unknown" else []),
    ]
    return "\n\n".join(parts) + "\n"


def public_name(dataset: str) -> str:
    """Return a data set's name without its parent folders, which are private."""
    kind, colon, path = dataset.partition(":")
    return f"{kind}{colon}{printable(PurePath(path).name)}"


def without_folders(result: Result) -> Result:
    """Return the result with the user's own data sets and encoders named without their parent folders."""
    text = json.dumps(result)
    for name in [name for name in (*result["accuracy"], result["config"]["dataset"]) if is_at_path(name)]:
        text = text.replace(json.dumps(name)[1:-1], json.dumps(public_name(name))[1:-1])

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: strip(one) for key, one in value.items()}
        return PurePath(value).name if isinstance(value, str) and PurePath(value).is_absolute() else value

    found = json.loads(text)
    return cast(Result, {**found, "config": {**strip(found["config"]), "root": None}})


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, text: int = 1) -> str:
    """Write a Markdown table of plain texts, with its first `text` columns aligned left."""
    ruler = ["---"] * text + ["---:"] * (len(heads) - text)
    lines = [map(escape_markdown, heads), ruler, *(map(escape_markdown, row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _figures(result: Result) -> str:
    """Write the figures as tables, and their protocol as a list."""
    if not result["accuracy"]:
        return "Not measured yet: `intnacl probe RUN`, `intnacl attack RUN`, then export again."
    heads = [f"{name}, {radius_text(result)}".removesuffix(", ") for name in attack_heads(result)]
    # Reversed, so that the first row of a data set wins: the run's own kNN.
    knn = {one["dataset"]: one["accuracy"] for one in reversed(result["knn"])}
    accuracies = [
        [public_name(name), *row, two_decimals(knn.get(name))] for name, *row in accuracy_rows(result)
    ]
    parts = [table(["data set (accuracy, %)", "clean", *heads, "kNN, clean"], accuracies)]
    attacks = [
        [
            public_name(dataset),
            PROTOCOL_NAMES[protocol],
            ATTACK_NAMES.get(row["name"], row["name"]),
            eps_text(row["eps"]),
            f"{row['images']:,}",
            two_decimals(row["accuracy"]),
            two_decimals(row["clean"]),
        ]
        for dataset in dict.fromkeys(row["dataset"] for row in result["attacks"])
        for protocol in protocols_of(result, dataset)
        for row in best_rows(result, dataset, protocol)
    ]
    if attacks:
        heads = ["data set", "classifier", "attack", "eps", "images", "accuracy, %", "clean, same images"]
        parts.append(table(heads, attacks, text=3))
    others = [
        [public_name(row["dataset"]), PROTOCOL_NAMES[row["protocol"]], two_decimals(row["clean"])]
        for row in result["probes"]
        if row["protocol"] != own_protocol(result, row["dataset"])
    ]
    if others:
        parts.append(table(["data set", "another classifier", "clean, %"], others, text=2))
    corrupted = [
        [
            public_name(row["dataset"]),
            PROTOCOL_NAMES[row["protocol"]],
            f"{row['images']:,}",
            f"{len(row['by_corruption'])} of {len(CORRUPTIONS)}",
            two_decimals(fmean(row["by_corruption"].values())),
            two_decimals(row["clean"]),
        ]
        for row in result.get("corruptions", [])
    ]
    if corrupted:
        heads = ["data set", "classifier", "images", "corruptions", "mean accuracy, %", "clean, same images"]
        parts.append(table(heads, corrupted, text=2))
    if parts[1:]:
        parts.append(CLASSIFIERS)
    parts += [
        "\n".join(_protocol(result)),
        *(f"Warning: {escape_markdown(warning)}" for warning in result["warnings"]),
    ]
    return "\n\n".join(parts)


def _protocol(result: Result) -> list[str]:
    """Return one line each about the probe, the attacks, and the place and date of the measurements."""
    protocol = result["protocol"]
    probe, versions, hardware = protocol["probe"], protocol["versions"], protocol["hardware"]
    solver = f"Adam, {probe['epochs']} epochs of batches of {probe['batch_size']} at rate {probe['lr']:g}"
    if probe["solver"] == "lbfgs":
        solver = f"L-BFGS, at most {probe['max_iter']} iterations"
    solver += f", l2 {probe['l2']:g}"
    solver += ", features of length 1" * bool(probe["normalize"])
    solver += ", features standardised" * bool(probe["standardize"])
    lines = [f"- Training without labels ended on {clusters}."] if (clusters := clusters_text(result)) else []
    if any(own_protocol(result, name) == "slf" for name in result["accuracy"]):
        lines.append(
            f"- Linear probe: {solver}; frozen encoder in eval mode, no augmentation, last epoch on all "
            f"{images_measured_on(result)}."
        )
    if result["attacks"]:
        efforts = {row["name"]: (row["steps"], row["restarts"]) for row in result["attacks"]}
        schedules = [
            f" {ATTACK_NAMES.get(name, name)} takes {steps} steps from {starts} start{'s' * (starts != 1)}."
            for name, (steps, starts) in efforts.items()
            if (steps or 0) > 1
        ]
        lines.append(
            "- Attacks: ℓ∞ ball, pixels in [0, 1], scored in float32 without TF32; attacks of many steps "
            f"search in TF32 on a GPU.{''.join(schedules)}"
        )
    place = f"{hardware.get('gpu', hardware['cpu'])}, {protocol['date']}"
    lines.append(
        f"- Measured with intnacl {versions['intnacl']} and torch {versions['torch']} on {place}. "
        "[result.json](result.json) holds every figure and setting."
    )
    return lines


def _training(config: RunConfig) -> str:
    """Write a table of the main settings of training."""
    train, loss = config.train, config.loss
    settings = {"loss": "cross-entropy"}
    if config.objective == "distill":
        distill = config.distill
        settings = {
            "loss": f"distillation: features of a teacher, clean ({distill.clean_weight:g}) and under attack "
            f"({distill.robust_weight:g})",
            "attack in training": f"{distill.steps} steps of {eps_text(distill.step_size)} at eps "
            f"{eps_text(distill.eps)}",
        }
    elif config.objective == "finetune" and config.finetune.beta:
        settings["loss"] = f"TRADES, β = {config.finetune.beta:g}, eps {eps_text(config.finetune.eps)}"
        if config.finetune.clusters:
            settings["pseudo-labels"] = f"{config.finetune.clusters:,} clusters of features"
    elif config.objective == "contrastive":
        settings = {"loss": f"{loss_name(config)}: {loss.nacl}, M = {loss.num_positives}, {loss.negatives}"}
        if loss.num_positives > 1 and loss.nacl == "mixnca":
            settings["loss"] += f", λ = {loss.lam:g}"
        if loss.alpha:
            settings["loss"] += f"; robust term α = {loss.alpha:g}, weight {loss.weight}"
        settings["temperature"] = f"{loss.temperature:g}"
    schedule = "constant" if not train.changes_rate else f"{train.schedule}, warm-up {train.warmup_epochs:g}"
    settings |= {
        "epochs": str(train.epochs),
        "batch size": str(train.batch_size * train.accumulate),
        "optimiser": f"{train.optimizer}, weight decay {train.weight_decay:g}",
        "learning rate": f"{train.rate:g}, {schedule}",
        "precision": train.precision,
        "recipe": config.recipe,
        "seed": str(config.seed),
    }
    return table(["setting", "value"], list(settings.items()), text=2)


# ---- header ------------------------------------------------------------------------------------------------


def _header(config: RunConfig, result: Result, library: str, license: str) -> dict[str, Any]:
    """Return the header that the Hub reads; a user's own data set is left out, and its path stays private."""
    encoder, dataset = config.encoder.name.removeprefix("timm:"), config.dataset
    tags = [config.objective, "adversarial-robustness", "intnacl", loss_name(config), encoder]
    header: dict[str, Any] = {
        "library_name": library,
        "pipeline_tag": "image-feature-extraction",
        "license": license,
        "tags": list(dict.fromkeys(tags)),
    }
    if not is_at_path(dataset):
        header["datasets"] = [ON_HUB.get(dataset, dataset)]
    split = "train" if config.holdout else "test"  # images held out of training are of that split
    results = [
        {
            "task": {"type": "image-classification", "name": TASKS[own_protocol(result, name)]},
            "dataset": {
                "type": ON_HUB.get(name, name.partition(":")[0]),
                "name": public_name(name),
                "split": split,
            },
            "metrics": _metrics(result, name),
        }
        for name in result["accuracy"]
    ]
    if results:
        title = f"{encoder}-{loss_name(config)}-{dataset.partition(':')[0]}"
        header["model-index"] = [{"name": title, "results": results}]
    return header


def _metrics(result: Result, dataset: str) -> list[dict[str, Any]]:
    found = {"accuracy, %": result["accuracy"][dataset]["clean"]}
    own = own_protocol(result, dataset)
    if classes := result.get("classes", {}).get(dataset):
        found["balanced accuracy, %"] = classes["balanced_accuracy"]
    for probe in result["probes"]:
        if probe["dataset"] == dataset and probe["protocol"] != own:
            found.setdefault(f"accuracy, %, {PROTOCOL_NAMES[probe['protocol']]}", probe["clean"])
    for protocol in protocols_of(result, dataset):
        classifier = "" if protocol == own else f"{PROTOCOL_NAMES[protocol]}, "
        for row in best_rows(result, dataset, protocol):
            attack = classifier + ATTACK_NAMES.get(row["name"], row["name"])
            found[f"accuracy, %, {attack}, eps {eps_text(row['eps'])}, {row['images']:,} images"] = row[
                "accuracy"
            ]
    for corrupted in result.get("corruptions", []):
        if corrupted["dataset"] == dataset and corrupted["accuracy"] is not None:
            classifier = "" if corrupted["protocol"] == own else f"{PROTOCOL_NAMES[corrupted['protocol']]}, "
            found[f"accuracy, %, {classifier}{len(CORRUPTIONS)} common corruptions"] = corrupted["accuracy"]
    for one in result["knn"]:
        if one["dataset"] == dataset:
            votes = ", votes unweighted" if one.get("weights") == "uniform" else ""
            found[f"accuracy, %, {one['k']} nearest neighbours{votes}"] = one["accuracy"]
    return [{"type": "accuracy", "name": name, "value": round(value, 2)} for name, value in found.items()]


def _yaml(value: object, depth: int = 0) -> str:
    """Write mappings, lists and plain values as YAML, which takes JSON's texts and numbers as they are."""
    line = "\n" + "  " * depth
    if isinstance(value, Mapping):
        return "".join(f"{line}{key}:{_yaml(one, depth + 1)}" for key, one in value.items())
    if isinstance(value, list):
        return "".join(f"{line}- {_yaml(one, depth + 1).lstrip()}" for one in value)
    return f" {json.dumps(value, ensure_ascii=False)}"
