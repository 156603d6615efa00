"""`result.json`: the measurements of a run put together, with the protocol under which they were made."""

import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NotRequired, TypedDict, cast

from intnacl.attacks.named import ATTACK_NAMES, AttackRow, AttackSettings, eps_text
from intnacl.data.datasets import is_at_path
from intnacl.files import write_json
from intnacl.runs.attack import BATCH, attack_warnings, attacks_at, group_attacks, group_rows, planned_attacks
from intnacl.runs.config import to_dict
from intnacl.runs.folder import digest
from intnacl.runs.images import Checksums, MeasuredSplit
from intnacl.runs.measurements import FORMATS, KINDS, Kind, Measurement, plain
from intnacl.runs.opened import FEATURE_BATCH, Run
from intnacl.training.journal import last_record

SLOW = "torch.compile failed, so training took longer than it should: the error is in the run's output."
ROW = ("name", "eps", "steps", "step_size", "restarts", "images", "accuracy", "clean")


class Accuracy(TypedDict):
    """Percent on one data set under the attacks that the protocol names; None: not measured.

    The split, here and in the rows below, is that of the images measured on; "test" where it is missing.
    """

    clean: float
    fgsm: float | None
    pgd: float | None
    split: NotRequired[MeasuredSplit]


class KnnRow(TypedDict):
    """A kNN accuracy."""

    dataset: str
    split: NotRequired[MeasuredSplit]
    accuracy: float
    k: int
    classes: int
    temperature: float
    images: dict[str, int]


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
    images: dict[str, int]
    protocol: Kind
    probe: Mapping[str, object]


class Protocol(TypedDict):
    """Everything that the figures depend on."""

    dataset: str
    checksums: dict[str, Checksums]
    images: dict[str, dict[str, int]]
    encoder_sha256: str
    trained_on: str | None
    ranks: int | None  # of training's last epoch; earlier versions did not note them
    seed: int
    epochs: int
    objective: str
    probe: dict[str, object]
    accuracy: dict[str, str]  # the attacks whose figures are `fgsm` and `pgd` of the accuracies
    attacks: list[AttackSettings]
    batch_sizes: dict[str, int]
    precision: dict[str, str | None]
    versions: NotRequired[dict[str, str]]
    hardware: NotRequired[dict[str, str | int | bool]]
    date: NotRequired[str]


class Result(TypedDict):
    """The content of `result.json`."""

    accuracy: dict[str, Accuracy]
    attacks: list[AttackRow]
    knn: list[KnnRow]
    probes: list[ProbeRow]
    warnings: list[str]
    time_s: dict[str, float]
    """Seconds by stage."""
    protocol: Protocol
    config: dict[str, Any]


class Overview:
    """Everything that is measured on a run's encoder so far, read once.

    Measurements on other images than those of the run's probe are `left_out`, and those of an evaluator that
    now gives other figures count as not made.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.trained = last_record(run.folder.log) or {}
        every = [one for kind in KINDS for one in run.measurements.all(kind) if one.format == FORMATS[kind]]
        own = plain({"probe": asdict(run.config.probe)})["probe"]
        self.probes = {
            one.dataset: one for one in every if one.kind == "probe" and one.settings["probe"] == own
        }
        """Data set -> the run's own probe on it."""
        # The run's own first, as files that were copied have lost their times.
        every.sort(key=lambda one: one.settings.get("k") is not None or one.settings.get("probe", own) != own)
        self.left_out = [one for one in every if not run.measurements.is_on_probed_images(one)]
        self.measured: dict[Kind, list[Measurement]] = {
            kind: [one for one in every if one.kind == kind and one not in self.left_out] for kind in KINDS
        }
        attacked = [one.dataset for one in self.measured["attack"]]
        names = dict.fromkeys([*(name for name in run.datasets if name in attacked), *attacked])
        self.attacks = {
            name: group_attacks(
                [one for one in self.measured["attack"] if one.dataset == name], run.config.evaluation
            )
            for name in names
        }
        """Data set -> measured attacks in groups that share a worst case."""

    @property
    def is_whole(self) -> bool:
        """True if all that the configuration asks for is there."""
        planned = planned_attacks(self.run.config.evaluation)
        asked = {digest(attack.settings()) for attacks in planned for attack in attacks}
        done = {
            (one.dataset, digest(attack))
            for one in self.measured["attack"] for attack in one.settings["attacks"]
        }  # fmt: skip
        return all(
            name in self.probes and {(name, key) for key in asked} <= done for name in self.run.datasets
        )

    def probe_curves(self) -> dict[str, list[float]]:
        """Data set -> test accuracy after each epoch of the run's probe, where the solver has epochs."""
        return {name: one.figures["curve"] for name, one in self.probes.items() if "curve" in one.figures}

    def own_knn(self) -> dict[str, float]:
        """Data set -> kNN accuracy with the number of neighbours that suits it; others are tried by hand."""
        return {
            one.dataset: one.figures["accuracy"]
            for one in self.measured["knn"] if one.settings["k"] is None
        }  # fmt: skip

    def left_out_warnings(self) -> list[str]:
        """One sentence for each data set whose images or labels are not the same in all measurements."""
        names = dict.fromkeys(one.dataset for one in self.left_out)
        again = "measure it again, after the run's own `intnacl run`"
        return [
            f"{name}: what was measured on other images or labels than the run's own probe is left out: "
            f"{again if is_at_path(name) else 'measure it again with the --root of then'}."
            for name in names
        ]

    def result(self) -> Result:
        """Everything that is measured so far, as `result.json` holds it."""
        rows: dict[str, AttackRow] = {}
        for dataset, groups in self.attacks.items():
            for row in (row for group in groups for row in group_rows(group)):
                one: dict[str, object] = {"dataset": dataset, "split": self.run.images.measured_split}
                one |= {key: row[key] for key in ROW}  # type: ignore[literal-required]
                one |= {"of": row["of"]} if "of" in row else {}
                key = digest({k: v for k, v in one.items() if k not in ("accuracy", "clean")})
                rows[key] = cast(AttackRow, one)  # of several with the same settings, the last
        names = dict.fromkeys((*self.run.datasets, *self.probes))
        warnings = [SLOW] if self.run.config.train.compile and not self.trained.get("compiled", True) else []
        for dataset, groups in self.attacks.items():
            warnings += [f"{dataset}: {warning}" for warning in attack_warnings(groups)]
        return {
            "accuracy": {
                name: self._accuracy(name, list(rows.values())) for name in names if name in self.probes
            },
            "attacks": list(rows.values()),
            "knn": [cast(KnnRow, _shown(one)) for one in self.measured["knn"]],
            "probes": [
                cast(ProbeRow, {**_shown(one), "protocol": kind, "probe": one.settings["probe"]})
                for kind in ("probe", "hcl_probe")
                for one in self.measured[kind]
            ],
            "warnings": warnings + self.left_out_warnings(),
            "time_s": self._seconds(),
            "protocol": self._protocol(),
            "config": to_dict(self.run.folder.read_config()),  # not with another root of today's
        }

    def _accuracy(self, dataset: str, rows: list[AttackRow]) -> Accuracy:
        """Return accuracy clean, and under FGSM and PGD at the first eps."""
        probe, wanted = self.probes[dataset], self.run.config.evaluation
        found: Accuracy = {"clean": probe.figures["accuracy"], "fgsm": None, "pgd": None}
        if self.run.images.holdout:
            found["split"] = "holdout"
        for attack in attacks_at(("fgsm", wanted.pgd), wanted.eps[0], wanted.images) if wanted.eps else ():
            count = min(wanted.images or sys.maxsize, measured_images(probe.figures["images"]))
            key = {k: v for k, v in attack.settings().items() if k in ROW}
            key |= {"dataset": dataset, "images": count}
            match = [row["accuracy"] for row in rows if key.items() <= row.items()]
            if match and attack.name == "fgsm":
                found["fgsm"] = match[0]
            elif match:
                found["pgd"] = match[0]
        return found

    def _seconds(self) -> dict[str, float]:
        """Return the seconds of each stage, all its measurements together; training's by what took them."""
        last = self.trained
        times: dict[str, float] = {"compile": last["compiling"]} if last.get("compiling") else {}
        times["pretrain"] = last.get("seconds", 0.0)
        times |= {"pauses": last["pausing"]} if last.get("pausing") else {}
        for kind, measured in self.measured.items():
            for one in measured:
                stage = f"{kind} {one.dataset}"
                times[stage] = round(times.get(stage, 0.0) + one.time_s, 3)
        return times | {"total": round(sum(times.values()), 3)}

    def _protocol(self) -> Protocol:
        config = self.run.config
        groups = [group for some in self.attacks.values() for group in some]
        settings = [a for group in groups for one in group.attacks for a in one.settings["attacks"]]
        protocol: Protocol = {
            "dataset": config.dataset,
            "checksums": {name: one.figures["checksums"] for name, one in self.probes.items()},
            "images": {name: one.figures["images"] for name, one in self.probes.items()},
            "encoder_sha256": self.run.encoder_sha256,
            "trained_on": self.run.trained_on,
            "ranks": int(self.trained.get("ranks", 0)) or None,
            "seed": config.seed,
            "epochs": config.train.epochs,
            "objective": config.objective,
            "probe": asdict(config.probe) | {"frozen": "weights and statistics compared before and after"},
            "accuracy": {"fgsm": "fgsm", "pgd": config.evaluation.pgd},
            "attacks": list({digest(attack): attack for attack in settings}.values()),
            "batch_sizes": {
                "train": config.train.batch_size, "probe": config.probe.batch_size,
                "features": FEATURE_BATCH, "attack": BATCH,
            },
            "precision": {
                "train": config.train.precision, "measurement": "float32",
                "search of iterated attacks": "TF32 on GPUs",
            },
        }  # fmt: skip
        measured = [one for kind in ("probe", "knn", "attack") for one in self.measured[kind]]
        if measured:
            where = self.probes.get(config.dataset, measured[0]).environment
            shared = {"shared": True} if self.run.folder.shared.exists() else {}
            protocol = cast(Protocol, {**protocol, **where, "hardware": {**where["hardware"], **shared}})
        return protocol


def write_result(found: Overview) -> Result | None:
    """Write `result.json` as soon as everything the configuration asks for is measured; None until then."""
    if not found.is_whole:
        return None
    result = found.result()
    write_json(found.run.folder.result, result)
    return result


def _shown(one: Measurement) -> dict[str, Any]:
    """Return a measurement's figures without what stands elsewhere in the result."""
    hidden = ("curve", "class_names", "checksums")
    figures = {key: value for key, value in one.figures.items() if key not in hidden}
    return {"dataset": one.dataset, "split": "test"} | figures


def best_rows(result: Result, dataset: str) -> list[AttackRow]:
    """Return one row for each attack and eps on a data set: of several, the one over the most images.

    They are sorted by eps, and at each eps as in `ATTACK_NAMES`; the worst case comes last.
    Worst cases over other attacks on the same images all bound the true one: the lowest is nearest. One
    over a single attack is left out: beside those over several, FGSM's curve would pass for a worst case.
    """
    chosen: dict[tuple[str, float], AttackRow] = {}
    for row in sorted(result["attacks"], key=lambda row: (row["images"], -row["accuracy"])):
        if row["dataset"] == dataset and not of_one_attack(row):
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


def images_measured_on(result: Result) -> str:
    """Return "test images", or "held-out training images" where those stand in for them."""
    return "held-out training images" if result["config"].get("holdout") else "test images"


def measured_images(images: Mapping[str, int]) -> int:
    """Return how many images a data set's figures are on, of the numbers of images of each split."""
    return images["holdout"] if "holdout" in images else images["test"]
