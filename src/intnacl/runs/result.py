"""`result.json`: the parts of a run folder put together, with the protocol under which they were measured."""

from dataclasses import asdict
from typing import Any, TypedDict

from intnacl.attacks.named import AttackRow
from intnacl.data.datasets import is_at_path
from intnacl.files import write_json
from intnacl.runs import attack as robust
from intnacl.runs.config import to_dict
from intnacl.runs.folder import digest
from intnacl.runs.measurements import Part, all_parts, plain
from intnacl.runs.opened import FEATURE_BATCH, Subject
from intnacl.training.journal import last_record

KINDS = ("probe", "hcl_probe", "knn", "attack")
SLOW = "torch.compile failed, so that training took longer than it should: its output names the error."
ROW = ("name", "eps", "steps", "step_size", "restarts", "images", "accuracy", "clean")


class Accuracy(TypedDict):
    """Percent on one data set under the run's protocol; None: not measured."""

    clean: float
    fgsm: float | None
    pgd: float | None


class Result(TypedDict):
    """The content of `result.json`."""

    accuracy: dict[str, Accuracy]
    """Data set -> its figures."""
    attacks: list[AttackRow]
    knn: list[dict[str, Any]]
    probes: list[dict[str, Any]]
    warnings: list[str]
    time_s: dict[str, float]
    """Seconds of each stage, and in all."""
    protocol: dict[str, Any]
    config: dict[str, Any]


class Measured:
    """What is known of an encoder so far: its parts and the last record of its training, read once.

    Parts on other images than those of the run's probe are `left_out`.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject, config = subject, plain(asdict(subject.config.probe))
        parts = [part for kind in KINDS for part in all_parts(subject.folder, kind)]
        parts = [part for part in parts if part.settings["encoder"] == subject.checksum]
        self.trained = last_record(subject.folder.log) or {}
        own = [part for part in parts if part.kind == "probe" and part.settings["probe"] == config]
        self.probes = {part.settings["dataset"]: part for part in own}  # under the run's protocol
        self.left_out = [part for part in parts if not self._is_of_probed(part)]
        self.parts = {kind: [p for p in parts if p.kind == kind and self._is_of_probed(p)] for kind in KINDS}

    def _is_of_probed(self, part: Part) -> bool:
        """Whether it is on the images of the run's probe, if both tell which they were."""
        probe = self.probes.get(part.settings["dataset"])
        if probe is None or "checksums" not in part.figures:
            return True
        return bool(part.figures["checksums"] == probe.figures["checksums"])

    def is_whole(self, name: str) -> bool:
        """Whether all that the configuration asks for on this data set is there."""
        planned = robust.plans(self.subject.config.evaluation)
        asked = {digest(attack.settings()) for attacks in planned for attack in attacks}
        parts = [part for part in self.parts["attack"] if part.settings["dataset"] == name]
        done = {digest(attack) for part in parts for attack in part.settings["attacks"]}
        return name in self.probes and asked <= done

    def probe_curves(self) -> dict[str, list[float]]:
        """Data set -> test accuracy after each epoch of the run's probe, where the solver has epochs."""
        return {name: part.figures["curve"] for name, part in self.probes.items() if "curve" in part.figures}

    def own_knn(self) -> dict[str, float]:
        """Data set -> kNN accuracy with the number of neighbours that suits it; others are tried by hand."""
        parts = [part for part in self.parts["knn"] if part.settings["k"] is None]
        return {part.settings["dataset"]: part.figures["accuracy"] for part in parts}


def write_result(found: Measured) -> Result | None:
    """Write `result.json` as soon as everything the configuration asks for is measured; None until then."""
    if not all(found.is_whole(name) for name in found.subject.data_sets):
        return None
    result = _collect(found)
    write_json(found.subject.folder.result, result)
    return result


def collect(subject: Subject) -> Result:
    """Everything that is measured so far."""
    return _collect(Measured(subject))


def _collect(found: Measured) -> Result:
    attacks = _attack_rows(found)
    names = dict.fromkeys((*found.subject.data_sets, *found.probes))
    return {
        "accuracy": {name: _accuracy(found, name, attacks) for name in names if name in found.probes},
        "attacks": attacks,
        "knn": [_figures(part) for part in found.parts["knn"]],
        "probes": [
            _figures(part) | {"protocol": kind, "probe": part.settings["probe"]}
            for kind in ("probe", "hcl_probe") for part in found.parts[kind]
        ],
        "warnings": _training_warnings(found) + _attack_warnings(found) + left_out_warnings(found),
        "time_s": _times(found),
        "protocol": _protocol(found),
        "config": to_dict(found.subject.folder.read_config()),  # not with another root of today's
    }  # fmt: skip


def _accuracy(measured: Measured, name: str, rows: list[AttackRow]) -> Accuracy:
    """Percent under the run's protocol: clean, and FGSM and PGD at the first eps; None: not measured."""
    part, wanted = measured.probes[name], measured.subject.config.evaluation
    attacked: dict[str, float | None] = {}
    for attack in robust.plan(("fgsm", "pgd"), wanted.eps[0], wanted.images) if wanted.eps else ():
        key = {k: v for k, v in attack.settings().items() if k in ROW}
        count = part.figures["images"]["test"]
        key |= {"dataset": name, "images": count if wanted.images is None else min(wanted.images, count)}
        match = [row["accuracy"] for row in rows if key.items() <= row.items()]
        attacked[attack.name] = match[0] if match else None
    clean = part.figures["accuracy"]
    return {"clean": clean, "fgsm": attacked.get("fgsm"), "pgd": attacked.get("pgd")}


def _attack_rows(found: Measured) -> list[AttackRow]:
    """Every attack and worst case, one row for the same settings."""
    rows: dict[str, AttackRow] = {}
    for part in found.parts["attack"]:
        for figures in (*part.figures["attacks"], *part.figures["worst_case"]):
            row: Any = {"dataset": part.settings["dataset"]} | {key: figures[key] for key in ROW}
            if row["name"] == "worst_case":
                row["of"] = [a["name"] for a in part.settings["attacks"] if a["eps"] == row["eps"]]
            rows[digest({k: v for k, v in row.items() if k not in ("accuracy", "clean")})] = row
    return list(rows.values())


def _attack_warnings(found: Measured) -> list[str]:
    """By data set, since accuracy is compared from eps to eps, and these are parts of their own."""
    parts: dict[str, list[Part]] = {}
    for part in found.parts["attack"]:
        parts.setdefault(part.settings["dataset"], []).append(part)
    return [f"{name}: {warning}" for name, some in parts.items() for warning in robust.attack_warnings(some)]


def left_out_warnings(found: Measured) -> list[str]:
    """One sentence for each data set whose images or labels are not the same in all measurements."""
    names = dict.fromkeys(part.settings["dataset"] for part in found.left_out)
    again = "measure it again, after the run's own `intnacl run`"
    return [
        f"{name}: what was measured on other images or labels than the run's own probe is left out: "
        f"{again if is_at_path(name) else 'measure it again with the --root of then'}."
        for name in names
    ]


def _training_warnings(found: Measured) -> list[str]:
    slow = found.subject.config.train.compile and not found.trained.get("compiled", True)
    return [SLOW] if slow else []


def _figures(part: Part) -> dict[str, Any]:
    """A part's figures without what is told elsewhere."""
    hidden = ("curve", "class_names", "checksums")
    return {"dataset": part.settings["dataset"]} | {k: v for k, v in part.figures.items() if k not in hidden}


def _times(found: Measured) -> dict[str, float]:
    """Seconds of each stage, summed over its parts; training's own by what they were spent on."""
    last = found.trained
    times: dict[str, float] = {"compile": last["compiling"]} if last.get("compiling") else {}
    times["pretrain"] = last.get("seconds", 0.0)
    times |= {"pauses": last["pausing"]} if last.get("pausing") else {}
    for kind, parts in found.parts.items():
        for part in parts:
            stage = f"{kind} {part.settings['dataset']}"
            times[stage] = round(times.get(stage, 0.0) + part.time_s, 3)
    return times | {"total": round(sum(times.values()), 3)}


def _protocol(found: Measured) -> dict[str, Any]:
    """How the figures came about, in full."""
    config, own = found.subject.config, found.probes.get(found.subject.config.dataset)
    measured = [part for kind in ("probe", "knn", "attack") for part in found.parts[kind]]
    attacks = {digest(a): a for part in found.parts["attack"] for a in part.settings["attacks"]}
    return {
        "dataset": config.dataset,
        "checksums": {name: part.figures["checksums"] for name, part in found.probes.items()},
        "images": {name: part.figures["images"] for name, part in found.probes.items()},
        "encoder_sha256": found.subject.checksum,
        "trained_on": found.subject.trained_on,
        "seed": config.seed,
        "epochs": config.train.epochs,
        "objective": config.objective,
        "probe": asdict(config.probe) | {"frozen": "weights and statistics compared before and after"},
        "attacks": list(attacks.values()),
        "batch_sizes": {
            "train": config.train.batch_size, "probe": config.probe.batch_size,
            "features": FEATURE_BATCH, "attack": robust.BATCH,
        },
        "precision": {
            "train": config.train.precision, "measurement": "float32",
            "search of iterated attacks": "TF32 on GPUs",
        },
        **(_surroundings(found, own or measured[0]) if measured else {}),
    }  # fmt: skip


def _surroundings(found: Measured, part: Part) -> dict[str, Any]:
    """Versions, hardware and date of a part; `shared` where other runs used the device at the same time."""
    shared = {"shared": True} if found.subject.folder.shared.exists() else {}
    return part.surroundings | {"hardware": part.surroundings["hardware"] | shared}


def best_rows(result: Result, dataset: str) -> list[AttackRow]:
    """Return one row for each attack and eps on a data set: of several, the one over the most images.

    Worst cases over other attacks on the same images all bound the true one: the lowest is nearest. One
    over a single attack is left out: beside those over several, FGSM's curve would pass for a worst case.
    """
    chosen: dict[tuple[str, float], AttackRow] = {}
    for row in sorted(result["attacks"], key=lambda row: (row["images"], -row["accuracy"])):
        if row["dataset"] == dataset and not of_one_attack(row):
            chosen[row["name"], row["eps"]] = row
    return sorted(chosen.values(), key=lambda row: (row["eps"], row["name"] == "worst_case"))


def of_one_attack(row: AttackRow) -> bool:
    """True if a row is the worst case of a single attack, which is that attack once more."""
    return len(row.get("of", ())) == 1


def radius_text(result: Result) -> str:
    """Return the radius of FGSM and PGD in the accuracies, as "eps 0.02"; empty where there are none.

    Where the attacks are on fewer than all test images, "eps 0.02 on 40 images": the clean accuracy beside
    them is that of all.
    """
    on = on_images(result)
    return "".join(f"eps {eps:.4g}{on}" for eps in result["config"]["evaluation"]["eps"][:1])


def on_images(result: Result) -> str:
    """Return " on 40 images" where a run's attacks are on fewer than all test images, else nothing."""
    some = result["config"]["evaluation"]["images"]
    most = max((count["test"] for count in result["protocol"]["images"].values()), default=0)
    return f" on {some:,} images" if some is not None and some < most else ""
