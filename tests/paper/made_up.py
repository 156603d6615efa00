"""Results folders without training, with made-up result.json files."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from intnacl.data.datasets import DATASETS
from intnacl.paper import published, record
from intnacl.paper.attempts import run_folder
from intnacl.paper.grid import PAPER, pick
from intnacl.paper.plan import Job, Plan, make_plan
from intnacl.runs.config import to_dict

Accuracy = Callable[[Job, str, str], float]


def shifted(shift: float = 0.0, spread: float = 0.3) -> Accuracy:
    """Return published accuracies moved by `shift`, with a spread over seeds; 50 if none is published."""

    def accuracy(job: Job, dataset: str, metric: str) -> float:
        value = published.find(job.config, dataset, metric)
        noise = random.Random(f"{job.name} {dataset} {metric}").gauss(0, spread)
        return (value.mean if value else 50.0) + shift + noise

    return accuracy


SCHEDULE = {"steps": None, "step_size": None, "restarts": None}  # AutoAttack has its own schedule


def result_of(job: Job, accuracy: Accuracy) -> dict[str, Any]:
    """Return a result in the format of a run."""
    config = job.config
    datasets = (config.dataset, *config.evaluation.transfer)
    table = {d: {m: accuracy(job, d, m) for m in ("clean", "fgsm", "pgd")} for d in datasets}
    return {
        "accuracy": table,
        "attacks": [
            {"dataset": d, "name": m, "eps": eps, "images": 100,
             "accuracy": table[d][m] * 0.002 / eps, **SCHEDULE}
            for d in datasets for m in ("fgsm", "pgd") for eps in config.evaluation.eps
        ],
        "time_s": {"pretrain": 1.4 * config.train.epochs * (config.loss.num_positives + 1) / 2},
        "protocol": {
            "dataset": config.dataset, "seed": config.seed, "versions": {"torch": "made up"},
            "images": {d: dict(zip(("train", "test"), DATASETS[d].counts or (), strict=True))
                       for d in datasets},
        },
        "config": to_dict(config),
    }  # fmt: skip


def fill(
    results: Path,
    plan: Plan,
    accuracy: Accuracy,
    *,
    skip: Callable[[Job], bool] = lambda job: False,
    scale: str = "paper",
) -> None:
    """Write a record, and results for all runs except those to skip."""
    record.write(results, plan, scale=scale, overrides={})
    for job in plan.jobs:
        if not skip(job):
            folder = run_folder(results, job.name)
            folder.path.mkdir(parents=True)
            folder.result.write_text(json.dumps(result_of(job, accuracy)))


def edit(results: Path, change: Callable[[dict[str, Any], int], object], runs: str = "*") -> None:
    """Change the results of the runs whose folders match; `change` is given a result and its index."""
    for i, path in enumerate(sorted(results.glob(f"runs/{runs}/result.json"))):
        result = json.loads(path.read_text())
        change(result, i)
        path.write_text(json.dumps(result))


def note_failure(results: Path, job: Job, error: str, *sessions: str) -> None:
    """Note an error of a run that these sessions gave up."""
    folder = run_folder(results, job.name)
    folder.path.mkdir(parents=True, exist_ok=True)
    noted = {"error": error, "tries": dict.fromkeys(sessions, 3), "given_up": sessions}
    folder.failure.write_text(json.dumps(noted))


def paper_plan(names: tuple[str, ...], seeds: list[int], **overrides: Any) -> Plan:
    """Return the plan of some of the paper's tables."""
    return make_plan(pick(PAPER, names), seeds, universe=PAPER, overrides=overrides)
