"""Trackers: programs that show a run's figures, such as TensorBoard and Weights & Biases, beside `log.jsonl`.

Any object with the four methods of `Tracker` is one. The log is the run's own record: trackers get what is in
it, and a run whose tracker fails goes on without that tracker.
"""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from intnacl.errors import InputError, InputWarning, missing_extra

Figures = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A run, as a tracker gets to know it."""

    id: str
    """A text of 16 letters and digits that no other run has; it stays the same when the run is resumed."""
    folder: Path
    config: Mapping[str, object]
    """All settings by dotted name."""
    epochs: Mapping[int, Figures]
    """The figures of the epochs that are done, none at the beginning of a run."""


@runtime_checkable
class Tracker(Protocol):
    """Takes the figures of a run, on its main rank alone.

    A resumed run calls `begin` once more with the same id, and goes on after the last of the run's `epochs`.
    Epochs after its checkpoint are trained, and given, a second time.
    """

    def begin(self, run: TrackedRun) -> None:
        """Open the run, or go on with it."""

    def epoch(self, epoch: int, figures: Figures) -> None:
        """Take the means of an epoch, such as {"loss": 4.7, "knn": 61.2}; epochs count from 1."""

    def result(self, figures: Figures) -> None:
        """Take the accuracies of a finished run in percent, such as {"accuracy/cifar10/clean": 90.3}."""

    def end(self) -> None:
        """Write what is still to be written: the run is finished, or was stopped."""


class TensorBoard:
    """Writes to the folder `tensorboard` of the run: `tensorboard --logdir RUN/tensorboard`.

    Every process that goes on with the run adds a file, which is made with its first figures. It makes
    TensorBoard forget what earlier files hold of later epochs.
    """

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise missing_extra("tensorboard", "tensorboard", "the tracker tensorboard") from None
        self._open: Any = SummaryWriter
        self._writer: Any = None

    def begin(self, run: TrackedRun) -> None:
        """Note the folder and the last epoch that is done."""
        self._folder, self._last = run.folder / "tensorboard", max(run.epochs, default=0)

    def epoch(self, epoch: int, figures: Figures) -> None:
        """Write an epoch's figures."""
        if self._writer is None:
            self._writer = self._open(str(self._folder), purge_step=self._last + 1)
        for name, value in figures.items():
            self._writer.add_scalar(name, value, epoch)

    def result(self, figures: Figures) -> None:
        """Write the accuracies at the last epoch."""
        self.epoch(self._last, figures)

    def end(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None


class WandB:
    """Weights & Biases (https://docs.wandb.ai), offline unless `mode` or $WANDB_MODE says "online".

    Offline, each process that goes on with the run adds a folder to `RUN/wandb`, of which the newest holds
    the whole run; `wandb sync RUN/wandb` uploads them in their order as one run. Online, the run is resumed.

        intnacl.runs.run({"dataset": "cifar10"}, trackers=[WandB(project="robust", entity="us")])

    Args:
        options: arguments of `wandb.init`, over ours: project ($WANDB_PROJECT, else "intnacl"), mode, tags …
    """

    def __init__(self, **options: Any) -> None:
        try:
            import wandb
        except ImportError:
            raise missing_extra("wandb", "wandb", "the tracker wandb") from None
        self._wandb: Any = wandb
        self._options = {
            "project": os.environ.get("WANDB_PROJECT", "intnacl"),
            "mode": os.environ.get("WANDB_MODE", "offline"),
            "resume": "allow",
            "reinit": "create_new",
        } | options

    def begin(self, run: TrackedRun) -> None:
        """Open the run, or resume it, and log what W&B does not have of the epochs that are done."""
        own = {
            "id": run.id,
            "name": run.folder.name,
            "dir": str(run.folder),
            "config": dict(run.config),
            "settings": self._wandb.Settings(console="off", silent=self._options["mode"] == "offline"),
        }
        self._run = self._wandb.init(**own | self._options)
        for epoch, figures in run.epochs.items():
            self.epoch(epoch, figures)

    def epoch(self, epoch: int, figures: Figures) -> None:
        """Log an epoch's figures, unless W&B has it from an earlier process."""
        if epoch >= self._run.starting_step:
            self._run.log(dict(figures), step=epoch)

    def result(self, figures: Figures) -> None:
        """Write the accuracies to the run's summary."""
        self._run.summary.update(dict(figures))

    def end(self) -> None:
        """Close the run; a later `begin` resumes it."""
        self._run.finish()


TRACKERS: dict[str, Callable[[], Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB}


def check_trackers(trackers: object) -> None:
    """Raise unless these are objects with the methods of a `Tracker`."""
    if isinstance(trackers, str) or not isinstance(trackers, Sequence):
        raise InputError(f"trackers={trackers!r} is no list: give [TRACKER], or [] for none.")
    for one in trackers:
        if isinstance(one, type) or not isinstance(one, Tracker):
            if isinstance(one, str):
                remedy = f"a name goes into the settings, as {{'train.trackers': [{one!r}]}}"
            else:
                remedy = "give an object with the methods begin, epoch, result and end"
            raise InputError(f"trackers: {one!r} is no tracker: {remedy}.")


class Tracking:
    """The trackers of one run, in training between `begin` and `end`, after it in `finish`.

    A tracker that cannot begin to follow the training ends the command. One that fails later is left out with
    a warning.
    """

    def __init__(
        self, trackers: Sequence[Tracker], *, id: str, folder: Path, config: Mapping[str, object]
    ) -> None:
        self.trackers, self.id, self.folder, self.config = trackers, id, folder, config
        self._begun: list[Tracker] = []

    def begin(self, epochs: Mapping[int, Figures]) -> None:
        """Open the run with every tracker."""
        run = self._run(epochs)
        for tracker in self.trackers:
            try:
                tracker.begin(run)
            except InputError:
                raise
            except Exception as error:
                raise InputError(f"the {_named(tracker)} cannot begin: {_reason(error)}.") from error
            self._begun.append(tracker)

    def epoch(self, epoch: int, figures: Figures) -> None:
        """Hand on the figures of an epoch."""
        self._each(lambda tracker: tracker.epoch(epoch, figures))

    def end(self) -> None:
        """Close the run with every tracker."""
        self._each(lambda tracker: tracker.end())
        self._begun = []

    def finish(self, epochs: Mapping[int, Figures], result: Figures) -> None:
        """Open the run once more, hand on the accuracies that it ended with, and close it."""
        run, self._begun = self._run(epochs), list(self.trackers)
        self._each(lambda tracker: tracker.begin(run))
        self._each(lambda tracker: tracker.result(result))
        self.end()

    def _run(self, epochs: Mapping[int, Figures]) -> TrackedRun:
        return TrackedRun(id=self.id, folder=self.folder, config=self.config, epochs=epochs)

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for tracker in list(self._begun):
            try:
                act(tracker)
            except Exception as error:
                self._begun.remove(tracker)
                text = f"the {_named(tracker)} failed ({_reason(error)}): the run goes on without it."
                warnings.warn(f"{text} Its figures are in log.jsonl.", InputWarning, stacklevel=3)


def _named(tracker: Tracker) -> str:
    return f"tracker {type(tracker).__name__}"


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(".: ")
