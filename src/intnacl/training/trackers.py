"""Trackers: programs that show a run's figures, such as TensorBoard and Weights & Biases.

Any object with the four methods of `Tracker` is one. The run's own record is `log.jsonl`: trackers get its
figures, and if a tracker fails, the run continues without it.
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
    """A run, as it is described to a tracker."""

    id: str
    """A unique string of 16 letters and digits, which stays the same when the run is resumed."""
    folder: Path
    config: Mapping[str, object]
    """All settings by dotted name."""
    epochs: Mapping[int, Figures]
    """The figures of finished epochs; empty at the beginning of a run."""


@runtime_checkable
class Tracker(Protocol):
    """Receives the figures of a run, on its main rank only.

    A resumed run calls `begin` again with the same id, and continues after the last of the run's `epochs`.
    Epochs after its checkpoint are trained, and reported, a second time.
    """

    def begin(self, run: TrackedRun) -> None:
        """Open the run, or resume it."""

    def epoch(self, epoch: int, figures: Figures) -> None:
        """Receive the means of an epoch, such as {"loss": 4.7, "knn": 61.2}; epochs count from 1."""

    def result(self, figures: Figures) -> None:
        """Receive the accuracies of a finished run in percent, such as {"accuracy/cifar10/clean": 90.3}."""

    def end(self) -> None:
        """Write what has not been written yet: the run is finished, or was stopped."""


class TensorBoard:
    """Writes to the folder `tensorboard` of the run: `tensorboard --logdir RUN/tensorboard`.

    Every process that resumes the run adds a file, which is created with its first figures. It makes
    TensorBoard discard these epochs and later ones in earlier files.
    """

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise missing_extra("tensorboard", "tensorboard", "the tracker tensorboard") from None
        self._open: Any = SummaryWriter
        self._writer: Any = None

    def begin(self, run: TrackedRun) -> None:
        """Remember the folder and the last finished epoch."""
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
    """Weights & Biases (https://docs.wandb.ai), offline unless `mode` or $WANDB_MODE is "online".

    Offline, each process that resumes the run adds a folder to `RUN/wandb`, the newest of which holds the
    whole run; `wandb sync RUN/wandb` uploads them in order as one run. Online, the run is resumed.

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
        """Open the run, or resume it, and log the finished epochs that W&B does not have."""
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
        """Log an epoch's figures, unless W&B has them from an earlier process."""
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
        raise InputError(f"trackers={trackers!r} is not a list: give [TRACKER], or [] for none.")
    for one in trackers:
        if isinstance(one, type) or not isinstance(one, Tracker):
            if isinstance(one, str):
                remedy = f"a name goes into the settings, as {{'train.trackers': [{one!r}]}}"
            else:
                remedy = "give an object with the methods begin, epoch, result and end"
            raise InputError(f"trackers: {one!r} is not a tracker: {remedy}.")


class Tracking:
    """The trackers of one run: `begin` to `end` are for training, `finish` is for the final result.

    A tracker that fails in `begin` before the training ends the command. One that fails later is dropped with
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
        """Report the figures of an epoch to every tracker."""
        self._each(lambda tracker: tracker.epoch(epoch, figures))

    def end(self) -> None:
        """Close the run with every tracker."""
        self._each(lambda tracker: tracker.end())
        self._begun = []

    def finish(self, epochs: Mapping[int, Figures], result: Figures) -> None:
        """Open the run again, report its final accuracies, and close it."""
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
                text = f"the {_named(tracker)} failed ({_reason(error)}): the run continues without it."
                warnings.warn(f"{text} All figures are in log.jsonl.", InputWarning, stacklevel=3)


def _named(tracker: Tracker) -> str:
    return f"tracker {type(tracker).__name__}"


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(".: ")
