"""A whole run: pretrain, then measure what its configuration asks for, in stages that can be resumed."""

import warnings
from collections.abc import Callable, Iterator
from functools import partial

from intnacl.attacks.autoattack import check_targets, require_autoattack
from intnacl.data import Dataset
from intnacl.errors import InputError, InputWarning
from intnacl.runs.attack import plans, run_attacks, stage_name
from intnacl.runs.config import RunConfig
from intnacl.runs.folder import RunFolder
from intnacl.runs.measurements import Part
from intnacl.runs.opened import Subject, load_labelled, open_subject
from intnacl.runs.pretrain import image_side, pretrain
from intnacl.runs.probes import run_knn, run_probe
from intnacl.runs.result import Measured
from intnacl.training.ranks import Ranks
from intnacl.training.stop import Stop

Say = Callable[[str], None]


def run(
    config: RunConfig, folder: RunFolder, here: Ranks, stop: Stop, say: Say = lambda text: None
) -> str | None:
    """Pretrain and measure to the end (None) or until told to stop (the reason).

    The same call on the same folder goes on at the stage where it was, and leaves a finished run as it is.
    The end is `result.json` and `report.html`. Of many ranks, the main one measures.
    """
    if not folder.encoder.exists():
        check(config)
    reason = pretrain(config, folder, here, stop)
    if reason is None and here.main:
        reason = measure(open_subject(folder, here.device), stop, say)
    return reason


def measure(subject: Subject, stop: Stop, say: Say = lambda text: None) -> str | None:
    """Measure what the configuration of a trained run asks for, then write its result and its page."""
    from intnacl.runs.page import write_result_and_page

    for name, stage in _stages(subject):
        if stop.due():
            return stop.reason
        with stop.at_once():
            part = stage()
            say(f"{name}: {part.time_s:.1f} s")
    if stop.reason is not None:
        return stop.reason
    whole = write_result_and_page(Measured(subject))
    assert whole, f"{subject.folder.path}: all stages are done, but not all is measured"
    return None


def check(config: RunConfig) -> None:
    """Raise before any training if what is to be measured afterwards cannot be."""
    wanted = config.evaluation
    if not wanted.eps:
        raise InputError("evaluation.eps is empty: give at least one radius, such as 0.002.")
    plans(wanted)
    own = load_labelled(config, config.dataset, None)
    pairs = [own, *(load_labelled(config, name, image_side(own[0])) for name in wanted.transfer)]
    for train, test in pairs:
        _warn_of_classes(test, train, "test images but no training images", "so that these count as wrong")
        _warn_of_classes(
            train, test, "training images but no test images", "so that no figure is about these"
        )
    if "autoattack" in wanted.attacks:
        require_autoattack()
        check_targets(min(len(test.classes) for _, test in pairs))


def _warn_of_classes(one: Dataset, other: Dataset, what: str, consequence: str) -> None:
    """Warn of classes that have images in the one split alone."""
    assert one.labels is not None
    assert other.labels is not None
    alone = sorted(set(one.labels.tolist()) - set(other.labels.tolist()))
    if alone:
        names = ", ".join(one.classes[label] for label in alone[:5])
        more = ", …" * (len(alone) > 5)
        warnings.warn(
            f"dataset {one.name!r}: {len(alone)} of its classes have {what} ({names}{more}), {consequence}.",
            InputWarning,
            stacklevel=2,
        )


def _stages(subject: Subject) -> Iterator[tuple[str, Callable[[], Part]]]:
    for name in subject.data_sets:
        yield f"probe {name}", partial(run_probe, subject, name)
        yield f"knn {name}", partial(run_knn, subject, name)
        for attacks in plans(subject.config.evaluation):
            yield stage_name(name, attacks), partial(run_attacks, subject, name, attacks)
