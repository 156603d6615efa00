"""A whole run: pretrain, then measure what its configuration asks for, in resumable stages."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from intnacl.attacks.autoattack import check_targets
from intnacl.console import show
from intnacl.errors import InputError
from intnacl.files import as_path
from intnacl.models.shipped import located
from intnacl.runs.attack import planned_attacks
from intnacl.runs.config import RunConfig
from intnacl.runs.folder import RunFolder, default_folder, file_name
from intnacl.runs.images import RunImages
from intnacl.runs.measure import measure_all
from intnacl.runs.opened import Run, open_run
from intnacl.runs.pretrain import pretrain, tracking_of
from intnacl.runs.resolve import resolve, teacher_of, warn_of_unused
from intnacl.training.journal import curves, records
from intnacl.training.ranks import Ranks, ranks
from intnacl.training.stop import Stop
from intnacl.training.trackers import Tracker, check_trackers

Say = Callable[[str], None]


def run(
    settings: Mapping[str, object] | None = None,
    *,
    preset: str | None = None,
    recipe: str | None = None,
    file: str | Path | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    max_minutes: float | None = None,
    say: Say = show,
    trackers: Sequence[Tracker] = (),
) -> Run:
    """Pretrain and measure like `intnacl run`, and return the opened run. The same call resumes.

        run = intnacl.runs.run({"dataset": "cifar100", "train.epochs": 100}, preset="intnacl", out="c100")

    Args:
        settings: Any settings by their dotted names, as in docs/settings.md.
        preset, recipe: The same as the flags of the command.
        file: A TOML file of settings, which `settings` override.
        out: The run's folder; by default one in runs/ that is named after the run.
        device: auto, cpu, cuda, cuda:1 …
        max_minutes: Save and stop after this time, with an error that the run is not finished.
        say: Receives the lines that the command prints.
        trackers: Objects that receive the run's figures, in addition to the setting `train.trackers`.
    """
    check_trackers(trackers)
    if not isinstance(settings, Mapping | None):
        raise InputError(
            f"settings={settings!r} is not a dict: give settings by name, such as {{'train.epochs': 100}}."
        )
    given = dict(settings or {})
    toml = None if file is None else as_path("file", file)
    folder = None if out is None else RunFolder(as_path("out", out))
    with ranks(device) as here, Stop(max_minutes) as stop:
        config = resolve(given, file=toml, preset=preset, recipe=recipe)
        if here.main:
            warn_of_unused(given, [config])
        folder = folder or RunFolder(default_folder(config))
        images = RunImages(config)
        tell = say if here.main else lambda text: None
        reason = train_and_measure(config, folder, here, stop, tell, images, trackers)
    if reason == "interrupt":
        raise KeyboardInterrupt
    if reason is not None:
        raise InputError(f"{folder} was stopped ({reason}) before its end: the same call resumes it.")
    return open_run(folder, device=here.device, images=images)


def train_and_measure(
    config: RunConfig,
    folder: RunFolder,
    here: Ranks,
    stop: Stop,
    say: Say = lambda text: None,
    images: RunImages | None = None,
    trackers: Sequence[Tracker] = (),
) -> str | None:
    """Pretrain and measure to the end, or until told to stop; return the reason of a stop, or None.

    A run of objective=distill that names no teacher first trains one in RUN/teacher, and measures both in the
    same way.

    The same call on the same folder resumes at the stage that was stopped, and leaves a finished run
    unchanged. The last files written are `result.json` and `report.html`. Only the main rank measures.
    `images` may be shared with other runs on the same data sets. `trackers` are added to those of the
    configuration.
    """
    images = images or RunImages(config)
    begun = folder.read_config() if folder.config.exists() else None
    why = images.decide(begun, here)
    if not folder.encoder.exists():
        if why:
            say(why)
        check(config, images)
    trained, teacher = [(config, folder)], RunFolder(folder.teacher)
    # A teacher that was removed after the student's training is not trained again.
    if config.objective == "distill" and config.distill.teacher is None and not folder.encoder.exists():
        trained.insert(0, (teacher_of(config), teacher))
    with nullcontext() if not here.main or folder.state() == "finished" else folder.work():
        for one, place in trained:
            if len(trained) > 1 and here.main and not place.encoder.exists():
                say(f"{'teacher' if place is teacher else 'student'}: {place}")
            reason = pretrain(one, place, here, stop, images, trackers)
            if reason is not None:
                return reason
        if not here.main:
            return None
        if config.objective == "distill" and config.distill.teacher is not None:
            take_teacher(config, teacher)
        measured = [place for place in (teacher, folder) if place.encoder.exists()]
        for place in measured:
            finished = place.is_finished()
            if len(measured) > 1 and not finished:
                say(f"measuring {'teacher' if place is teacher else 'student'}: {place}")
            run = open_run(place, device=here.device, images=images)
            reason = measure_all(run, stop, say)
            if reason is not None:
                return reason
            if finished or run.result is None:
                continue
            tracking = tracking_of(place, run.config, config.train.trackers, trackers)
            if tracking is not None:
                accuracies = {
                    f"accuracy/{file_name(dataset)}/{attack}": value
                    for dataset, row in run.result["accuracy"].items()
                    for attack, value in row.items()
                    if isinstance(value, float)
                }
                tracking.finish(curves(records(place.log)), accuracies)
    return None


def take_teacher(config: RunConfig, teacher: RunFolder) -> None:
    """Copy the encoder of the run that `distill.teacher` names, and its measurements, to RUN/teacher.

    The copy is measured like the student, and the teacher's own folder is left unchanged. A teacher without a
    run, or on other images, is not measured.
    """
    given = RunFolder(located(str(config.distill.teacher)))
    if teacher.encoder.exists() or not given.config.exists():
        return
    begun = given.read_config()
    if (begun.dataset, begun.holdout, begun.size) != (config.dataset, config.holdout, config.size):
        return
    teacher.begin(replace(begun, root=config.root, probe=config.probe, evaluation=config.evaluation))
    given.copy_files(teacher, measured=begun.probe == config.probe)


def check(config: RunConfig, images: RunImages) -> None:
    """Raise before any training if the measurements after it would be impossible."""
    wanted = config.evaluation
    if not wanted.eps:
        raise InputError("evaluation.eps is empty: give at least one radius, such as 0.002.")
    planned_attacks(wanted)
    images.check()
    if "autoattack" in wanted.attacks:
        check_targets(min(images.classes.values()))
