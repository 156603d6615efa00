"""The bodies of the commands that measure a trained run: measure, print, draw, update the result."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from intnacl.console import print_table, print_warnings, show, two_decimals
from intnacl.data.corruptions import CORRUPTIONS, frost_photographs
from intnacl.data.datasets import is_at_path
from intnacl.errors import InputError, check_choice
from intnacl.evaluation.knn import WEIGHTS
from intnacl.evaluation.probe import ProbeConfig
from intnacl.models.shipped import located
from intnacl.plots.curves import draw_probe, draw_robustness
from intnacl.plots.gallery import draw_neighbours, save_gallery
from intnacl.plots.style import save_figure
from intnacl.runs.attack import (
    attack_warnings,
    describe,
    group_attacks,
    group_rows,
    measure_attacks,
    planned_attacks,
)
from intnacl.runs.config import SETTINGS, EvaluationConfig, override, typed
from intnacl.runs.embed import check_output, features_in_pieces, write_features
from intnacl.runs.examples import load_examples
from intnacl.runs.explorer import MOST, check_most, write_explorer
from intnacl.runs.folder import RunFolder, file_name
from intnacl.runs.heads import PROTOCOLS, ProbeProtocol
from intnacl.runs.measure import (
    measure_alf,
    measure_corruption,
    measure_hcl_probe,
    measure_knn,
    measure_probe,
)
from intnacl.runs.measurement import Measurement
from intnacl.runs.opened import Run, open_run
from intnacl.runs.overview import Overview
from intnacl.runs.page import (
    draw_stored,
    print_attacks,
    print_corruptions,
    print_probes,
    write_result_and_page,
)
from intnacl.runs.result import best_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ADAM_SETTINGS = {"probe.epochs", "probe.batch_size", "probe.lr"}
PROBES = ("run", "slf", "quick", "clae", "hcl", "alf")
ALF_SETTINGS = ("epochs", "batch_size", "lr")
STALE = (
    "result.json was not updated: some measurements that the run is configured for are missing on these "
    "images. The `intnacl run` command that made the run adds them."
)
# Default radii: from the paper's upwards on named data sets, around the usual 8/255 on the user's own images.
EPS_CURVE = (0.002, 0.004, 0.008, 0.016, 8 / 255, 0.032)
OWN_CURVE = tuple(n / 255 for n in (1, 2, 4, 8, 16))


def probe_command(
    path: Path,
    datasets: Sequence[str],
    protocol: str,
    changes: Mapping[str, object],
    device: str,
    root: Path | None = None,
    out: Path | None = None,
) -> list[Measurement]:
    """Probe a run's encoder on data sets, by default the run's own, with changed settings of the probe."""
    check_choice("protocol", protocol, PROBES)
    part = "alf." if protocol == "alf" else "probe."
    if protocol == "alf":  # its flags are those of the other probes, its settings are not
        changes = {
            key.replace("probe.", "alf.") if key[6:] in ALF_SETTINGS else key: value
            for key, value in changes.items()
        }
    for key in changes:
        check_choice("setting of the probe", key, (name for name in SETTINGS if name.startswith(part)))
    run = _open_to_measure(path, out, device, root)
    measured = [_probe(run, name, protocol, changes) for name in run.named(datasets)]
    print_probes(measured)
    curves = {one.dataset: one.figures["curve"] for one in measured if "curve" in one.figures}
    if curves:
        name = "-".join(
            ["probe", *([] if protocol in ("run", "slf") else [protocol]), *map(file_name, curves)]
        )
        _save(draw_probe(curves), run.folder / f"{name}.png")
    _finish(run)
    return measured


def knn_command(
    path: Path,
    datasets: Sequence[str],
    k: int | None,
    weights: str,
    device: str,
    root: Path | None = None,
    out: Path | None = None,
) -> list[Measurement]:
    """Measure the kNN accuracy of a run's encoder on data sets, by default the run's own."""
    check_choice("weights", weights, WEIGHTS)
    run = _open_to_measure(path, out, device, root)
    measured = []
    for name in run.named(datasets):
        _announce(f"knn {name}")
        measured.append(measure_knn(run, name, k, weights))
    rows = [[one.dataset, str(one.figures["k"]), two_decimals(one.figures["accuracy"])] for one in measured]
    votes = "weighted" if weights == "exp" else "unweighted"
    print_table(f"{votes} kNN on frozen features, percent", ["data set", "k", "accuracy"], rows)
    _finish(run)
    return measured


def attack_command(
    path: Path,
    datasets: Sequence[str],
    eps: Sequence[float],
    attacks: Sequence[str],
    images: int | None,
    device: str,
    root: Path | None = None,
    protocol: str | None = None,
    out: Path | None = None,
) -> None:
    """Attack the classifiers of a run; fit those first that have not been fitted."""
    trained_by = checked_protocol(protocol)
    radii = tuple(sorted(set(eps or _default_radii(path))))
    wanted = EvaluationConfig(eps=radii, attacks=tuple(attacks), images=images)
    planned = planned_attacks(wanted)
    if not attacks:
        raise InputError("no attack was named: give some of fgsm, pgd, pgd_tuned, autoattack.")
    run = _open_to_measure(path, out, device, root)
    for name in run.named(datasets):
        measured = []
        for together in planned:
            show(f"{describe(name, together)} …")
            measured += measure_attacks(run, name, together, trained_by)
        groups = group_attacks(measured, wanted)
        print_attacks(name, [row for group in groups for row in group_rows(group)])
        print_warnings(attack_warnings(groups))
        rows = best_rows(Overview(run).result(), name, protocol)  # of everything measured so far
        own = protocol in (None, run.measurements.own_protocol(name))
        _save(
            draw_robustness(rows), run.folder.picture("robustness" if own else f"robustness-{protocol}", name)
        )
        examples = load_examples(run, name)
        if own and examples is not None:
            _save(draw_stored(examples), run.folder.picture("examples", name))
    _finish(run)


def corruptions_command(
    path: Path,
    datasets: Sequence[str],
    names: Sequence[str],
    protocol: str | None,
    device: str,
    root: Path | None = None,
    out: Path | None = None,
) -> None:
    """Measure classifiers of a run on corrupted images; fit those first that have not been fitted."""
    trained_by = checked_protocol(protocol)
    for corruption in names:
        check_choice("corruption", corruption, CORRUPTIONS)
    chosen = names or tuple(CORRUPTIONS)
    if "frost" in chosen:
        frost_photographs()  # raises before any work if they are missing
    run = _open_to_measure(path, out, device, root)
    for name in run.named(datasets):
        for corruption in dict.fromkeys(chosen):
            _announce(f"{corruption} {name}")
            measure_corruption(run, name, corruption, trained_by)
    print_corruptions(Overview(run).corruptions())
    _finish(run)


def checked_protocol(protocol: str | None) -> ProbeProtocol | None:
    """Return the protocol that a user names, or raise if there is none of that name."""
    if protocol is not None:
        check_choice("protocol", protocol, PROTOCOLS)
    return cast("ProbeProtocol | None", protocol)


def _default_radii(path: Path) -> Sequence[float]:
    """Return the radii at which a run is attacked if none are given."""
    folder = RunFolder(located(path))
    own = folder.config.exists() and is_at_path(folder.read_config().dataset)
    return OWN_CURVE if own else EPS_CURVE


def embed_command(
    path: Path,
    dataset: str | None,
    split: str,
    out: Path | None,
    device: str,
    root: Path | None = None,
    html: bool = False,
    most: int = MOST,
) -> None:
    """Write the features of a split of a data set, by default the run's own, and draw nearest neighbours.

    With `html`, also write a page of at most `most` images laid out by their features.
    """
    check_most(most)
    if out is not None:
        check_output(out)
    run = open_run(path, device=device, root=root)
    (name,) = run.named([dataset] if dataset else [])
    if out is None:
        run.folder.check_writable("give --out FILE.npz or FILE.parquet.")
        out = run.folder.features(name, split)
    images = run.images.split(name, split)
    with features_in_pieces(run, images, out) as features:
        write_features(features, images, out)
        show(f"{len(images):,} images of {name}, {split}: features {features.shape}, float32")
        show(f"written: {out}")
        if len(images) > 1:
            picture = out.with_suffix(".png")
            save_gallery(draw_neighbours(features, images), picture)
            show(f"written: {picture}")
        if html:
            page = out.with_suffix(".html")
            _announce(f"laying out {min(most, len(images)):,} images")
            write_explorer(run, images, features, page, most=most)
            show(f"written: {page}")
        if features.broken:
            listed = ", ".join(f"{image} ({reason})" for image, reason in features.broken.items())
            text = f"{len(features.broken)} damaged images were replaced by others of their class: {listed}"
            print_warnings([text])


def _open_to_measure(path: Path, out: Path | None, device: str, root: Path | None) -> Run:
    """Open a run, or a copy of it in `out`, to which measurements can be written."""
    run = open_run(path, out=out, device=device, root=root)
    run.folder.check_writable()
    return run


def _finish(run: Run) -> None:
    """Update the result and its page, and warn about what they leave out."""
    found = write_result_and_page(run)
    print_warnings(found.left_out_warnings())
    if not found.is_whole and run.folder.result.exists():
        print_warnings([STALE])


def _announce(stage: str) -> None:
    """Print the stage that is about to begin: on a CPU it may take hours."""
    show(f"{stage} …")


def _probe(run: Run, name: str, protocol: str, changes: Mapping[str, object]) -> Measurement:
    _announce(f"probe {name}")
    if protocol == "hcl":
        if other := sorted(changes.keys() - {"probe.epochs"}):
            raise InputError(
                f"{other[0]} is fixed by --protocol hcl, in which only --epochs can be changed: leave it out."
            )
        epochs = changes.get("probe.epochs")
        return measure_hcl_probe(run, name, epochs if epochs is None else typed(epochs, int, "probe.epochs"))
    if protocol == "alf":
        return measure_alf(run, name, override(run.config, changes).alf)
    if protocol == "run" and not changes:
        return measure_probe(run, name)  # a fine-tuned encoder is measured with the layer trained with it
    config = run.config.probe
    if protocol == "quick":
        config = replace(config, solver="lbfgs")
    if protocol == "clae":
        config = ProbeConfig(epochs=config.epochs, seed=config.seed)
    config = override(replace(run.config, probe=config), changes).probe
    if config.solver == "lbfgs" and (given := sorted(changes.keys() & ADAM_SETTINGS)):
        raise InputError(
            f"{given[0]}={changes[given[0]]} is a setting of Adam, but this probe uses L-BFGS: leave it out, "
            "or choose --set probe.solver=adam or another --protocol (clae, hcl)."
        )
    return measure_probe(run, name, config)


def _save(figure: "Figure", path: Path) -> None:
    save_figure(figure, path)
    show(f"written: {path}")
