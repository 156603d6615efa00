"""The paper's values, found by the run's own configuration: percent, mean and deviation over 5 trials."""

import json
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from intnacl.runs.config import RunConfig

TRIALS = 5
EPS = 0.002


class Value(NamedTuple):
    """A published mean and its deviation; None where the paper gives none."""

    mean: float
    sd: float | None


def find(config: RunConfig, dataset: str, metric: str, eps: float | None = None) -> Value | None:
    """The published value of a run's figure, or None. Whether the run is the paper's, `setting` tells."""
    radius = config.evaluation.eps[0] if eps is None and config.evaluation.eps else eps
    if metric != "clean" and radius != EPS:
        return None
    loss = config.loss
    if config.objective == "contrastive" and loss.negatives != "g0" and loss.tau_plus != 0.01:
        return None  # HardNeg and other estimators: drawn in the paper's figures, never printed
    return values().get((config.dataset, dataset, metric, *_loss_key(config), config.train.epochs))


def _loss_key(config: RunConfig) -> tuple[Any, ...]:
    if config.objective == "supervised":
        return (None,) * 7
    loss, robust = config.loss, config.loss.alpha > 0
    mixed = loss.num_positives > 1 and loss.nacl == "mixnca"
    nacl = None if loss.num_positives == 1 else loss.nacl
    weight = {"loss": "what", "relative": "what", "one": "one"}[loss.weight] if robust else None
    estimator = (loss.robust_negatives or loss.negatives) if robust else None
    lam = loss.lam if mixed else None
    return nacl, loss.negatives, lam, loss.num_positives, loss.alpha, estimator, weight


@cache
def values() -> dict[tuple[Any, ...], Value]:
    """Key of a figure -> its value; of two printed ones, that with a deviation."""
    found: dict[tuple[Any, ...], Value] = {}
    for row in _document()["values"]:
        one = row["m"] == 1  # NCA and MIXNCA are the same there
        key = (
            row["pretrain"], row["eval"], row["metric"], None if one else row["nacl"], row["g1"],
            None if one else row["lam"], row["m"], row["alpha"], row["g2"], row["w"], row["epochs"],
        )  # fmt: skip
        if key not in found or row["std"] is not None:
            found[key] = Value(row["mean"], row["std"])
    return found


@cache
def epochs(dataset: str, objective: str) -> tuple[int, ...]:
    """After how many the paper prints figures of a run with this data set and objective."""
    rows = [row for row in _document()["values"] if row["pretrain"] == dataset]
    return tuple(
        sorted({row["epochs"] for row in rows if (row["g1"] is None) == (objective == "supervised")})
    )


def training_times() -> str:
    """The paper's training times, which are those of its machine: loss, epochs and minutes."""
    times = _document()["wall_clock_minutes"]
    return ", ".join(f"{t['loss']} {t['minutes']} min for {t['epochs']} epochs" for t in times)


@cache
def _document() -> dict[str, Any]:
    text = files("intnacl.paper").joinpath("published.json").read_text(encoding="utf-8")
    return dict(json.loads(text))
