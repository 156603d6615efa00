"""A run's measurements put together as its result, with the protocol under which they were made."""

import sys
from dataclasses import asdict
from typing import Any, cast

from intnacl.attacks.named import AttackRow
from intnacl.data.datasets import is_at_path
from intnacl.files import write_json
from intnacl.runs.attack import BATCH, attack_warnings, attacks_at, group_attacks, group_rows, planned_attacks
from intnacl.runs.config import to_dict
from intnacl.runs.folder import digest
from intnacl.runs.measurements import FORMATS, KINDS, Kind, Measurement, plain
from intnacl.runs.opened import FEATURE_BATCH, Run
from intnacl.runs.result import Accuracy, KnnRow, ProbeRow, Protocol, Result, RunSettings, measured_images
from intnacl.training.journal import last_record

SLOW = "torch.compile failed, so training took longer than it should: the error is in the run's output."
ROW = ("name", "eps", "steps", "step_size", "restarts", "images", "accuracy", "clean")


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
        every.sort(key=lambda one: not self._is_own_knn(one) or one.settings.get("probe", own) != own)
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
            for one in self.measured["attack"]
            for attack in one.settings["attacks"]
        }
        return all(
            name in self.probes and {(name, key) for key in asked} <= done for name in self.run.datasets
        )

    def probe_curves(self) -> dict[str, list[float]]:
        """Data set -> test accuracy after each epoch of the run's probe, where the solver has epochs."""
        return {name: one.figures["curve"] for name, one in self.probes.items() if "curve" in one.figures}

    def own_knn(self) -> dict[str, float]:
        """Data set -> the kNN accuracy that the run's configuration asks for; others are tried by hand."""
        return {one.dataset: one.figures["accuracy"] for one in self.measured["knn"] if self._is_own_knn(one)}

    def _is_own_knn(self, one: Measurement) -> bool:
        """True unless it is a kNN accuracy with other neighbours or votes than the configuration's."""
        wanted, settings = self.run.config.evaluation, one.settings
        asked = wanted.knn_k, wanted.knn_weights
        return one.kind != "knn" or (settings["k"], settings.get("weights", "exp")) == asked

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
            # Not with another root of today's.
            "config": cast(RunSettings, to_dict(self.run.folder.read_config())),
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
                "train": config.train.batch_size,
                "probe": config.probe.batch_size,
                "features": FEATURE_BATCH,
                "attack": BATCH,
            },
            "precision": {
                "train": config.train.precision,
                "measurement": "float32",
                "search of iterated attacks": "TF32 on GPUs",
            },
        }
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
