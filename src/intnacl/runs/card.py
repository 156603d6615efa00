"""The model card of an exported encoder, in Markdown."""

import json
from typing import Any

from intnacl.attacks.named import ATTACK_NAMES
from intnacl.console import two_decimals
from intnacl.runs.config import RunConfig
from intnacl.runs.folder import loss_name
from intnacl.runs.page import attacks_at, best_rows
from intnacl.runs.tables import accuracy_rows

MARK = "An encoder trained by intnacl"  # by which a card of ours is known


def model_card(config: RunConfig, result: dict[str, Any], usage: str) -> str:
    """What the encoder is, how it is used, what was measured and how; `result` as in result.json."""
    title = f"{config.encoder.name}, {loss_name(config)}, {config.dataset}"
    train = config.train
    parts = [
        f"# {title}",
        f"{MARK} for {train.epochs} epochs on {config.dataset} (batch "
        f"{train.batch_size}, {train.optimizer}, learning rate {train.lr:g}, seed {config.seed}, recipe "
        f"{config.recipe}).",
        f"## Use\n\n```python\n{usage}\n```",
        f"## Figures\n\n{_accuracy(result)}",
        _attacks(result),
        "## Protocol\n\nLinear probe: frozen encoder in eval mode, no augmentation, last epoch on all test "
        "images. Attacks: ℓ∞ ball, pixels in [0, 1], judged in float32 without TF32; those of many steps "
        "search in TF32 on a GPU.\n\n"
        f"```json\n{json.dumps(result['protocol'], indent=1, ensure_ascii=False)}\n```",
        f"## Configuration\n\n```json\n{json.dumps(result['config'], indent=1, ensure_ascii=False)}\n```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _accuracy(result: dict[str, Any]) -> str:
    if not result["accuracy"]:
        return "Not measured yet: `intnacl probe RUN`, `intnacl attack RUN`, then export again."
    heads = [f"{name}, {attacks_at(result)}".removesuffix(", ") for name in ("FGSM", "PGD")]
    return _table(["data set (accuracy, %)", "clean", *heads], accuracy_rows(result))


def _attacks(result: dict[str, Any]) -> str:
    rows = [
        [
            row["dataset"], ATTACK_NAMES.get(row["name"], row["name"]), f"{row['eps']:.4g}",
            str(row["images"]), two_decimals(row["accuracy"]), two_decimals(row["clean"]),
        ]
        for dataset in dict.fromkeys(row["dataset"] for row in result["attacks"])
        for row in best_rows(result, dataset)
    ]  # fmt: skip
    heads = ["data set", "attack", "eps", "images", "accuracy, %", "clean, same images"]
    return _table(heads, rows) if rows else ""


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
