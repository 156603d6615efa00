"""The flags that `pretrain`, `run` and `supervised` share, and their dotted settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

from cyclopts import Parameter, Token, convert

from intnacl.errors import InputError

MANY = Parameter(consume_multiple=1, negative=(), show_default=False)  # --seeds 0 1 2: one or more


def _numbers(kind: Any, tokens: Sequence[Token]) -> Any:
    """Convert to one float or a tuple of floats, depending on the flag's type; 8/255 is allowed."""
    from intnacl.runs.config import number

    numbers = tuple(number(token.value) for token in tokens)
    return numbers[0] if kind is float else numbers


def _as_written(kind: Any, tokens: Sequence[Token]) -> Any:
    """Convert as cyclopts does, but refuse a decimal fraction for an integer, which would be rounded."""
    if int in (kind, *get_args(kind)):
        for token in tokens:
            if "." in token.value:
                raise ValueError(f"{token.value!r} is not a whole number.")
    return convert(kind, tokens)


FRACTIONS = Parameter(converter=_numbers)  # --eps 8/255
USUAL = Parameter(converter=_as_written)  # for every other flag


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Flags:
    """Flags of a run.

    Parameters
    ----------
    dataset
        A data set that `intnacl datasets` lists; by default digits.
    root
        Data folder; by default $INTNACL_DATA, else ~/.cache/intnacl.
    size
        Side length to which images of folder:, parquet: and webdataset: are resized; by default 32.
    stream
        auto, always or never: decode images during training, for data sets larger than memory.
    augment
        Augmentation of the views: paper, simclr, crop_flip, pad_crop_flip or none; by default the recipe's.
    preset
        simclr (the default), debiased, hardneg, debiased_hardneg, adv, intcl or intnacl.
    epochs
        Passes over the data set.
    batch_size
        Images per batch, over all ranks.
    lr
        Learning rate.
    num_positives
        M, the number of positives per image.
    lam
        λ, the weight of the image itself in a mixed view.
    alpha
        α, the weight of the robust term.
    holdout
        Number of training images to hold out, on which everything is measured instead of the test images.
    seed
        Random seed for weights, batches and views.
    device
        auto, cpu, cuda, cuda:1 …
    out
        Run folder; by default a folder in runs/ named after the run.
    config
        A TOML file of settings; flags override it.
    recipe
        paper, tinyimagenet, own or digits, by default that of the data set; strong or knn90 (docs/strong.md);
        imagenet (docs/scale.md); robust, an encoder for attacks of 8/255, or robust_clusters, its last stage
        on pseudo-labels (docs/robust.md).
    teacher
        With the recipe robust: a trained run or an encoder's file to distil, instead of training a teacher.
    set_
        Any setting in docs/settings.md by its dotted name: loss.temperature=0.2 encoder.name=resnet34 …
    max_minutes
        Save and stop after this many minutes; the same command resumes.
    trackers
        Programs that show the run's figures during training: tensorboard, wandb (docs/trackers.md).
    """

    dataset: str | None = None
    root: Path | None = None
    size: int | None = None
    stream: str | None = None
    augment: str | None = None
    preset: str | None = None
    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    num_positives: int | None = None
    lam: float | None = None
    alpha: float | None = None
    holdout: int | None = None
    seed: int | None = None
    device: str = "auto"
    out: Path | None = None
    config: Path | None = None
    recipe: str | None = None
    teacher: Path | None = None
    set_: Annotated[tuple[str, ...], MANY, Parameter(name="--set")] = ()
    max_minutes: float | None = None
    trackers: Annotated[tuple[str, ...] | None, MANY] = None

    @property
    def overrides(self) -> dict[str, Any]:
        """The given settings by dotted name; those of `--set` override the others."""
        from intnacl.runs.config import FLAGS

        values = {dotted: getattr(self, name) for dotted, name in FLAGS.items()}
        values |= {"root": self.root and str(self.root), "augment": self.augment}
        values |= {"distill.teacher": self.teacher and str(self.teacher)}
        return {key: value for key, value in values.items() if value is not None} | pairs(self.set_)

    @property
    def names_a_run(self) -> bool:
        """True if the flags determine the data or the loss."""
        named = {key.partition(".")[0] for key in self.overrides} & {"loss", "dataset", "objective"}
        robust = (self.recipe or "").startswith("robust")
        return bool(named or self.preset or self.config or robust)


def pairs(texts: tuple[str, ...]) -> dict[str, str]:
    """Split the KEY=VALUE texts of `--set`."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set {text!r} must be KEY=VALUE, such as loss.temperature=0.2.")
        found[key] = value
    return found
