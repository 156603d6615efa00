"""`result.json`: the parts of a run folder put together, with the protocol under which they were measured."""

from dataclasses import asdict
from typing import Any

from intnacl.config import to_dict
from intnacl.measure import robust
from intnacl.measure.parts import Part, all_parts, digest, plain, write_json
from intnacl.measure.subject import FEATURE_BATCH, Subject
from intnacl.stages import read_config
from intnacl.training.journal import LOG, records

RESULT = "result.json"
ROW = ("name", "eps", "steps", "step_size", "restarts", "images", "accuracy", "clean")


def write_result(subject: Subject) -> dict[str, Any] | None:
    """Write `result.json` as soon as everything the configuration asks for is measured; None until then."""
    if any(_is_unmeasured(subject, name) for name in subject.data_sets):
        return None
    result = collect(subject)
    write_json(result, subject.folder / RESULT)
    return result


def _is_unmeasured(subject: Subject, name: str) -> bool:
    """Whether something that the configuration asks for on this data set is not in any part yet."""
    planned = robust.plans(subject.config.evaluation)
    asked = {digest(plain(asdict(attack))) for attacks in planned for attack in attacks}
    parts = [part for part in _attacks(subject) if part.settings["dataset"] == name]
    done = {digest(attack) for part in parts for attack in part.settings["attacks"]}
    return _own_probe(subject, name) is None or not asked <= done


def collect(subject: Subject) -> dict[str, Any]:
    """Everything that is measured so far."""
    attacks = _attack_rows(subject)
    names = list(dict.fromkeys((*subject.data_sets, *(p.settings["dataset"] for p in _own_probes(subject)))))
    return {
        "accuracy": {name: figures for name in names if (figures := _accuracy(subject, name, attacks))},
        "attacks": attacks,
        "knn": [_figures(part) for part in _parts(subject, "knn")],
        "probes": [
            _figures(part) | {"protocol": kind, "probe": part.settings["probe"]}
            for kind in ("probe", "hcl_probe") for part in _parts(subject, kind)
        ],
        "warnings": _warnings(subject),
        "time_s": _times(subject),
        "protocol": _protocol(subject),
        "config": to_dict(read_config(subject.folder)),  # not with another root of today's
    }  # fmt: skip


def probe_curves(subject: Subject) -> dict[str, list[float]]:
    """Data set -> test accuracy after each epoch of the run's probe, where the solver has epochs."""
    return {
        part.settings["dataset"]: part.figures["curve"]
        for part in _own_probes(subject) if "curve" in part.figures
    }  # fmt: skip


def own_knn(subject: Subject) -> dict[str, float]:
    """Data set -> kNN accuracy with the number of neighbours that suits it; others are tried by hand."""
    parts = [part for part in _parts(subject, "knn") if part.settings["k"] is None]
    return {part.settings["dataset"]: part.figures["accuracy"] for part in parts}


def _parts(subject: Subject, kind: str) -> list[Part]:
    """The parts that belong to this encoder."""
    found = all_parts(subject.folder, kind)
    return [part for part in found if part.settings["encoder"] == subject.checksum]


def _attacks(subject: Subject) -> list[Part]:
    """Attacks on the pictures of the run's probe, if both tell which they were."""
    probed = {part.settings["dataset"]: part.figures["checksums"] for part in _own_probes(subject)}
    parts = [(part, probed.get(part.settings["dataset"])) for part in _parts(subject, "attack")]
    return [part for part, pictures in parts if part.figures.get("checksums", pictures) == pictures]


def _own_probes(subject: Subject) -> list[Part]:
    own = plain(asdict(subject.config.probe))
    return [part for part in _parts(subject, "probe") if part.settings["probe"] == own]


def _own_probe(subject: Subject, name: str) -> Part | None:
    return next((part for part in _own_probes(subject) if part.settings["dataset"] == name), None)


def _accuracy(subject: Subject, name: str, rows: list[dict[str, Any]]) -> dict[str, float | None] | None:
    """Percent under the run's protocol: clean, and FGSM and PGD at the first eps; None: not measured."""
    part = _own_probe(subject, name)
    if part is None:
        return None
    wanted = subject.config.evaluation
    found: dict[str, float | None] = {"clean": part.figures["accuracy"], "fgsm": None, "pgd": None}
    for attack in robust.plan(("fgsm", "pgd"), wanted.eps[0], wanted.images) if wanted.eps else ():
        key = {k: getattr(attack, k) for k in ("name", "eps", "steps", "step_size", "restarts")}
        count = part.figures["images"]["test"]
        key |= {"dataset": name, "images": count if wanted.images is None else min(wanted.images, count)}
        match = [row["accuracy"] for row in rows if key.items() <= row.items()]
        found[attack.name] = match[0] if match else None
    return found


def _attack_rows(subject: Subject) -> list[dict[str, Any]]:
    """Every attack and worst case, one row for the same settings."""
    rows: dict[str, dict[str, Any]] = {}
    for part in _attacks(subject):
        for figures in (*part.figures["attacks"], *part.figures["worst_case"]):
            row = {"dataset": part.settings["dataset"]} | {key: figures[key] for key in ROW}
            if row["name"] == "worst_case":
                row["of"] = [a["name"] for a in part.settings["attacks"] if a["eps"] == row["eps"]]
            rows[digest({k: v for k, v in row.items() if k not in ("accuracy", "clean")})] = row
    return list(rows.values())


def _warnings(subject: Subject) -> list[str]:
    """By data set, since accuracy is compared from eps to eps, and these are parts of their own."""
    parts: dict[str, list[Part]] = {}
    for part in _attacks(subject):
        parts.setdefault(part.settings["dataset"], []).append(part)
    return [f"{name}: {warning}" for name, some in parts.items() for warning in robust.attack_warnings(some)]


def _figures(part: Part) -> dict[str, Any]:
    """A part's figures without what is told elsewhere."""
    hidden = ("curve", "class_names", "checksums")
    return {"dataset": part.settings["dataset"]} | {k: v for k, v in part.figures.items() if k not in hidden}


def _times(subject: Subject) -> dict[str, float]:
    """Seconds of each stage, summed over its parts."""
    log = records(subject.folder / LOG)
    times: dict[str, float] = {"pretrain": log[-1]["seconds"] if log else 0.0}
    for kind in ("probe", "hcl_probe", "knn", "attack"):
        for part in _parts(subject, kind):
            stage = f"{kind} {part.settings['dataset']}"
            times[stage] = round(times.get(stage, 0.0) + part.time_s, 3)
    return times | {"total": round(sum(times.values()), 3)}


def _protocol(subject: Subject) -> dict[str, Any]:
    """How the figures came about, in full."""
    config, own = subject.config, _own_probe(subject, subject.config.dataset)
    measured = [part for kind in ("probe", "knn", "attack") for part in _parts(subject, kind)]
    attacks = {digest(a): a for part in _attacks(subject) for a in part.settings["attacks"]}
    return {
        "dataset": config.dataset,
        "checksums": {p.settings["dataset"]: p.figures["checksums"] for p in _own_probes(subject)},
        "images": {p.settings["dataset"]: p.figures["images"] for p in _own_probes(subject)},
        "encoder_sha256": subject.checksum,
        "seed": config.seed,
        "epochs": config.train.epochs,
        "objective": config.objective,
        "probe": asdict(config.probe) | {"frozen": "weights and statistics hashed before and after"},
        "attacks": list(attacks.values()),
        "batch_sizes": {
            "train": config.train.batch_size, "probe": config.probe.batch_size,
            "features": FEATURE_BATCH, "attack": robust.BATCH,
        },
        "precision": {
            "train": config.train.precision, "measurement": "float32",
            "search of iterated attacks": "TF32 on GPUs",
        },
        **((own or measured[0]).surroundings if measured else {}),
    }  # fmt: skip
