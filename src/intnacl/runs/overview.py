"""A run's measurements combined into its result, with the protocol under which they were made."""

import sys
from dataclasses import asdict
from statistics import fmean
from typing import Any, cast

from intnacl.attacks.named import AttackRow
from intnacl.data.corruptions import CORRUPTIONS
from intnacl.data.datasets import is_at_path
from intnacl.evaluation.confusion import balanced_accuracy, class_accuracies
from intnacl.files import write_json
from intnacl.runs.attack import BATCH, attack_warnings, attacks_at, group_attacks, group_rows, planned_attacks
from intnacl.runs.config import to_dict
from intnacl.runs.folder import digest
from intnacl.runs.heads import FINETUNED, PROTOCOL_NAMES, PROTOCOLS
from intnacl.runs.measurement import KINDS, Kind, Measurement, current_format, plain
from intnacl.runs.opened import FEATURE_BATCH, Run
from intnacl.runs.pseudo_labels import read_clustering
from intnacl.runs.result import (
    Accuracy,
    ClassFigures,
    CorruptionRow,
    FewLabels,
    KnnRow,
    ProbeRow,
    Protocol,
    Result,
    RunSettings,
    measured_images,
)
from intnacl.training.journal import last_record

SLOW = "torch.compile failed, so training was slower than it could be: the run's output has the error."
ROW = ("name", "eps", "steps", "step_size", "restarts", "images", "accuracy", "clean")


class Overview:
    """Everything that is measured on a run's encoder so far, read once.

    Measurements on other images than those of the run's probe are `left_out`. Measurements of an evaluator
    that would now give other figures are ignored.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.trained = last_record(run.folder.log) or {}
        every = [
            one
            for kind in KINDS
            for one in run.measurements.all(kind)
            if one.format == current_format(kind, one.settings)
        ]
        own = plain({"probe": asdict(run.config.probe), "alf": asdict(run.config.alf)})
        self.probes = {
            one.dataset: one
            for one in every
            if one.kind == "probe"
            and one.settings == plain(run.measurements.classifier_settings(one.dataset))
        }
        """Data set -> the run's own probe on it."""

        def is_own(one: Measurement) -> bool:
            asked = one.settings.get("probe", own["probe"]), one.settings.get("alf", own["alf"])
            return asked == (own["probe"], own["alf"]) and self._is_own_knn(one)

        # Copied files have lost their times, so the run's own measurements are explicitly sorted first.
        every.sort(key=lambda one: not is_own(one))
        self.left_out = [one for one in every if not run.measurements.is_on_probed_images(one)]
        self.measured: dict[Kind, list[Measurement]] = {
            kind: [one for one in every if one.kind == kind and one not in self.left_out] for kind in KINDS
        }
        attacked = [one.dataset for one in self.measured["attack"]]
        names = dict.fromkeys([*(name for name in run.datasets if name in attacked), *attacked])
        self.attacks = {
            (name, protocol): group_attacks(some, run.config.evaluation)
            for name in names
            for protocol in PROTOCOLS
            if (
                some := [
                    one for one in self.measured["attack"] if (one.dataset, one.protocol) == (name, protocol)
                ]
            )
        }
        """Data set and protocol -> measured attacks in groups that share a worst case."""

    @property
    def is_whole(self) -> bool:
        """True if all that the configuration asks for is measured."""
        planned = planned_attacks(self.run.config.evaluation)
        asked = {digest(attack.settings()) for attacks in planned for attack in attacks}
        done = {
            (one.dataset, digest(attack))
            for one in self.measured["attack"]
            for attack in one.settings["attacks"]
            if one.protocol == self.run.measurements.own_protocol(one.dataset)
        }
        own = self.run.config.dataset
        few_labels = self.run.measurements.own_protocol(own) == "sff"
        return (self.few_labels() is not None or not few_labels) and all(
            name in self.probes and {(name, key) for key in asked} <= done for name in self.run.datasets
        )

    def probe_curves(self) -> dict[str, list[float]]:
        """Return data set -> test accuracy after each epoch of the run's probe, if the solver has epochs."""
        return {name: one.figures["curve"] for name, one in self.probes.items() if "curve" in one.figures}

    def own_knn(self) -> dict[str, float]:
        """Return data set -> kNN accuracy with the neighbours and votes of the run's configuration."""
        return {one.dataset: one.figures["accuracy"] for one in self.measured["knn"] if self._is_own_knn(one)}

    def _is_own_knn(self, one: Measurement) -> bool:
        """Return False for a kNN accuracy with other neighbours or votes than the configuration's."""
        wanted, settings = self.run.config.evaluation, one.settings
        asked = wanted.knn_k, wanted.knn_weights
        return one.kind != "knn" or (settings["k"], settings.get("weights", "exp")) == asked

    def left_out_warnings(self) -> list[str]:
        """Return a warning for each data set whose images or labels differ between measurements."""
        names = dict.fromkeys(one.dataset for one in self.left_out)
        own = "repeat the `intnacl run` command of the run, then measure again"
        named = "measure again with the --root that the probe was fitted with"
        return [
            f"{name}: measurements on other images or labels than those of the run's own probe are left out: "
            f"{own if is_at_path(name) else named}."
            for name in names
        ]

    def result(self) -> Result:
        """Return everything that is measured so far, in the form of `result.json`."""
        rows: dict[str, AttackRow] = {}
        for (dataset, protocol), groups in self.attacks.items():
            for row in (row for group in groups for row in group_rows(group)):
                one: dict[str, object] = {"dataset": dataset, "protocol": protocol}
                one["split"] = self.run.images.measured_split
                one |= {key: row[key] for key in ROW}  # type: ignore[literal-required]
                one |= {"of": row["of"]} if "of" in row else {}
                key = digest({k: v for k, v in one.items() if k not in ("accuracy", "clean")})
                rows[key] = cast(AttackRow, one)  # the last of several with the same settings
        names = dict.fromkeys((*self.run.datasets, *self.probes))
        warnings = [SLOW] if self.run.config.train.compile and not self.trained.get("compiled", True) else []
        for (dataset, protocol), groups in self.attacks.items():
            own = protocol == self.run.measurements.own_protocol(dataset)
            name = dataset if own else f"{dataset}, {PROTOCOL_NAMES[protocol]}"
            warnings += [f"{name}: {warning}" for warning in attack_warnings(groups)]
        result: Result = {
            "accuracy": {
                name: self._accuracy(name, list(rows.values())) for name in names if name in self.probes
            },
            "attacks": list(rows.values()),
            "knn": [cast(KnnRow, _row_of(one)) for one in self.measured["knn"]],
            "probes": [
                cast(ProbeRow, {**_row_of(one), **self._classifier(one)})
                for kind in ("probe", "hcl_probe", "alf")
                for one in self.measured[kind]
            ],
            "warnings": warnings + self.left_out_warnings(),
            "time_s": self._seconds(),
            "protocol": self._protocol(),
            # From the file, because `run.config` may have another root.
            "config": cast(RunSettings, to_dict(self.run.folder.read_config())),
        }
        if corrupted := self.corruptions():
            result["corruptions"] = corrupted
        if classes := self.classes():
            result["classes"] = classes
        if few_labels := self.few_labels():
            result["few_labels"] = few_labels
        return result

    def few_labels(self) -> FewLabels | None:
        """Return the accuracies of fine-tuning on a share of the labels, and of a probe on the same share."""
        run, dataset = self.run, self.run.config.dataset
        if run.measurements.own_protocol(dataset) != "sff" or dataset not in self.probes:
            return None
        wanted = plain(run.measurements.frozen_probe_settings(dataset))
        found = [one for one in self.measured["frozen_probe"] if one.settings == wanted]
        return {
            "dataset": dataset,
            "split": run.images.measured_split,
            "labels": run.config.finetune.labels,
            "seed": run.config.seed,
            "images": found[0].figures["images"],
            "finetuned": self.probes[dataset].figures["accuracy"],
            "probe": found[0].figures["accuracy"],
        } if found else None  # fmt: skip

    def classes(self) -> dict[str, ClassFigures]:
        """Return data set -> figures of its classes; an earlier version's probe has none."""
        return {
            name: {
                "split": one.figures.get("split", "test"),
                "protocol": one.protocol,
                "balanced_accuracy": balanced_accuracy(counts),
                "names": one.figures["class_names"][: len(counts)],
                "images": [sum(row) for row in counts],
                "accuracy": class_accuracies(counts),
                "confusion": counts,
            }
            for name, one in self.probes.items()
            if (counts := one.figures.get("confusion"))
        }

    def corruptions(self) -> list[CorruptionRow]:
        """Return the accuracy on corrupted images, a row for each data set and protocol."""
        rows: list[CorruptionRow] = []
        measured = self.measured["corruptions"]
        for dataset, protocol in dict.fromkeys((one.dataset, one.protocol) for one in measured):
            of = [one for one in measured if (one.dataset, one.protocol) == (dataset, protocol)]
            figures = {one.settings["corruption"]: one.figures for one in of}
            found = {name: figures[name] for name in CORRUPTIONS if name in figures}
            by_corruption = {name: one["accuracy"] for name, one in found.items()}
            severities = zip(*(one["by_severity"] for one in found.values()), strict=True)
            first = of[0].figures
            rows.append(
                {
                    "dataset": dataset,
                    "protocol": protocol,
                    "split": first["split"],
                    "images": measured_images(first["images"]),
                    "clean": first["clean"],
                    "accuracy": fmean(by_corruption.values()) if len(found) == len(CORRUPTIONS) else None,
                    "by_corruption": by_corruption,
                    "by_severity": [fmean(some) for some in severities],
                }
            )
        return rows

    def _classifier(self, one: Measurement) -> dict[str, object]:
        """Return the protocol of a probe and its settings, with its clean accuracy."""
        protocol = "hcl" if one.kind == "hcl_probe" else one.protocol
        settings = plain({"probe": asdict(self.run.config.finetune)})["probe"]
        if protocol not in FINETUNED:
            settings = one.settings["alf" if protocol == "alf" else "probe"]
        return {"clean": one.figures["accuracy"], "protocol": protocol, "probe": settings}

    def _accuracy(self, dataset: str, rows: list[AttackRow]) -> Accuracy:
        """Return the clean accuracy, and the accuracies under FGSM and PGD at the first eps."""
        probe, wanted = self.probes[dataset], self.run.config.evaluation
        found: Accuracy = {"clean": probe.figures["accuracy"], "fgsm": None, "pgd": None}
        protocol = self.run.measurements.own_protocol(dataset)
        if protocol != "slf":
            found["protocol"] = protocol
        if self.run.images.holdout:
            found["split"] = "holdout"
        for attack in attacks_at(("fgsm", wanted.pgd), wanted.eps[0], wanted.images) if wanted.eps else ():
            count = min(wanted.images or sys.maxsize, measured_images(probe.figures["images"]))
            key = {k: v for k, v in attack.settings().items() if k in ROW}
            key |= {"dataset": dataset, "images": count, "protocol": protocol}
            match = [row["accuracy"] for row in rows if key.items() <= row.items()]
            if match and attack.name == "fgsm":
                found["fgsm"] = match[0]
            elif match:
                found["pgd"] = match[0]
        return found

    def _seconds(self) -> dict[str, float]:
        """Return the seconds of each stage, over all its measurements; training is split into its parts."""
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
        if self.run.folder.pseudo_labels.exists():
            protocol["pseudo_labels"] = read_clustering(self.run.folder)
        measured = [one for kind in ("probe", "knn", "attack") for one in self.measured[kind]]
        if measured:
            where = self.probes.get(config.dataset, measured[0]).environment
            shared = {"shared": True} if self.run.folder.shared.exists() else {}
            protocol = cast(Protocol, {**protocol, **where, "hardware": {**where["hardware"], **shared}})
        return protocol


def write_result(found: Overview) -> Result | None:
    """Write and return `result.json` if all that the configuration asks for is measured; None until then."""
    if not found.is_whole:
        return None
    result = found.result()
    write_json(found.run.folder.result, result)
    return result


def _row_of(one: Measurement) -> dict[str, Any]:
    """Return a measurement's row: its figures without those that the result holds elsewhere."""
    hidden = ("curve", "class_names", "checksums", "confusion")
    figures = {key: value for key, value in one.figures.items() if key not in hidden}
    return {"dataset": one.dataset, "split": "test"} | figures
