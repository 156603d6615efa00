"""What the commands that measure a trained run do, apart from reading their flags."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from intnacl.attacks.autoattack import require_autoattack
from intnacl.attacks.named import Attack
from intnacl.console import print_table, print_warnings, two_decimals
from intnacl.errors import InputError, check_choice
from intnacl.evaluation.probe import ProbeConfig
from intnacl.plots.curves import draw_probe, draw_robustness
from intnacl.plots.gallery import draw_neighbours, save_gallery
from intnacl.plots.style import save_figure
from intnacl.runs.attack import attack_warnings, plans, run_attacks, stage_name
from intnacl.runs.config import EvaluationConfig
from intnacl.runs.embed import write_features
from intnacl.runs.folder import file_name
from intnacl.runs.measurements import Part
from intnacl.runs.opened import Subject, open_subject
from intnacl.runs.page import attacked_images, print_attacks, print_probes, write_result_and_page
from intnacl.runs.probes import run_hcl_probe, run_knn, run_probe
from intnacl.runs.result import Measured, best_rows, collect, left_out_warnings
from intnacl.training.ranks import pick_device

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROTOCOLS = ("run", "quick", "clae", "hcl")
STALE = (
    "result.json stays as it was: not all that the run asks for is measured on these images. The run's own "
    "`intnacl run` does that."
)
EPS_CURVE = (0.002, 0.004, 0.008, 0.016, 8 / 255, 0.032)  # where no eps is named


def probe_command(
    run: Path, datasets: Sequence[str], protocol: str, epochs: int | None, device: str,
    root: Path | None = None,
) -> list[Part]:  # fmt: skip
    """Probe a run's encoder on data sets, the run's own by default."""
    check_choice("protocol", protocol, PROTOCOLS)
    subject = open_subject(run, pick_device(device), root)
    parts = [_probe(subject, name, protocol, epochs) for name in subject.named(datasets)]
    print_probes(parts)
    curves = {p.settings["dataset"]: p.figures["curve"] for p in parts if "curve" in p.figures}
    if curves:
        name = "-".join(["probe", *([] if protocol == "run" else [protocol]), *map(file_name, curves)])
        _save(draw_probe(curves), run / f"{name}.png")
    _finish(subject)
    return parts


def knn_command(
    run: Path, datasets: Sequence[str], k: int | None, device: str, root: Path | None = None
) -> list[Part]:
    """kNN accuracy of a run's encoder on data sets, the run's own by default."""
    subject = open_subject(run, pick_device(device), root)
    parts = []
    for name in subject.named(datasets):
        _announce(f"knn {name}")
        parts.append(run_knn(subject, name, k))
    rows = [[p.settings["dataset"], str(p.figures["k"]), two_decimals(p.figures["accuracy"])] for p in parts]
    print_table("weighted kNN on frozen features, percent", ["data set", "k", "accuracy"], rows)
    _finish(subject)
    return parts


def attack_command(
    run: Path,
    datasets: Sequence[str],
    eps: Sequence[float],
    attacks: Sequence[str],
    images: int | None,
    device: str,
    root: Path | None = None,
) -> None:
    """Attack the classifiers of a run's probes; those that are not there yet are probed first."""
    radii = tuple(sorted(set(eps or EPS_CURVE)))
    planned = plans(EvaluationConfig(eps=radii, attacks=tuple(attacks), images=images))
    if not attacks:
        raise InputError("no attack was named: take some of fgsm, pgd, pgd_tuned, autoattack.")
    if "autoattack" in attacks:
        require_autoattack()
    subject = open_subject(run, pick_device(device), root)
    for name in subject.named(datasets):
        parts = [_attack(subject, name, together) for together in planned]
        rows = [row for p in parts for row in (*p.figures["attacks"], *p.figures["worst_case"])]
        print_attacks(name, rows)
        print_warnings(attack_warnings(parts))
        _draw_attacks(subject, name, radii[-1])
    _finish(subject)


def embed_command(
    run: Path, dataset: str | None, split: str, out: Path | None, device: str, root: Path | None = None
) -> None:
    """Write the features of a split, by default of the run's own training images, and draw neighbours."""
    if out is not None and out.suffix != ".npz":
        raise InputError(f"out={str(out)!r} is no archive of arrays: end its name in .npz.")
    subject = open_subject(run, pick_device(device), root)
    (name,) = subject.named([dataset] if dataset else [])
    out = out or subject.folder.features(name, split)
    images = subject.load_split(name, split)
    features_NF = subject.embed(images)
    write_features(features_NF, images, out)
    print(f"{len(images):,} images of {name}, {split}: features {tuple(features_NF.shape)}, float32")
    print(f"written: {out}")
    if len(images) > 1:
        picture = out.with_suffix(".png")
        save_gallery(draw_neighbours(features_NF, images), picture)
        print(f"written: {picture}")


def _finish(subject: Subject) -> None:
    """Bring the result and its page up to date, and say what they leave out."""
    found = Measured(subject)
    print_warnings(left_out_warnings(found))
    if not write_result_and_page(found) and subject.folder.result.exists():
        print_warnings([STALE])


def _announce(stage: str) -> None:
    """Say what is about to be done: on a CPU it may take hours."""
    print(f"{stage} …", flush=True)


def _probe(subject: Subject, name: str, protocol: str, epochs: int | None) -> Part:
    _announce(f"probe {name}")
    if protocol == "hcl":
        return run_hcl_probe(subject, name, epochs)
    config = subject.config.probe
    if protocol == "quick":
        config = replace(config, solver="lbfgs")
    if protocol == "clae":
        config = ProbeConfig(epochs=config.epochs, seed=config.seed)
    if epochs is not None and config.solver == "lbfgs":
        raise InputError(
            f"--epochs {epochs}: this probe takes L-BFGS, which has none: leave it out, or take another "
            "--protocol (clae, hcl)."
        )
    return run_probe(subject, name, config if epochs is None else replace(config, epochs=epochs))


def _attack(subject: Subject, name: str, attacks: tuple[Attack, ...]) -> Part:
    _announce(stage_name(name, attacks))
    return run_attacks(subject, name, attacks)


def _draw_attacks(subject: Subject, name: str, eps: float) -> None:
    """Accuracy over eps from everything measured so far, and images at the largest eps."""
    rows = best_rows(collect(subject), name)
    _save(draw_robustness(rows), subject.folder.picture("robustness", name))
    _save(attacked_images(subject, name, eps, rows), subject.folder.picture("examples", name))


def _save(figure: "Figure", path: Path) -> None:
    save_figure(figure, path)
    print(f"written: {path}")
