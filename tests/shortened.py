"""`python tests/shortened.py ARGUMENTS`: the command `intnacl`, with runs shortened to seconds.

The code blocks of the pages are tested with it. Apart from the settings below, the command is unchanged.
"""

from typing import Any

from intnacl.runs import resolve as module
from intnacl.runs.config import RunConfig

SHORT = {
    "encoder.name": "small",
    "train.epochs": 1,
    "train.warmup_epochs": 0,
    "train.monitor_epochs": 0,
    "probe.solver": "lbfgs",
    "probe.max_iter": 20,
    "evaluation.images": 8,
    "evaluation.attacks": ("fgsm",),
    "alf.epochs": 1,
}
SMALL_BATCH = {"train.batch_size": 16}  # for the other datasets, which have few images in these tests
original_resolve = module.resolve


def resolve(overrides: dict[str, Any] | None = None, **more: Any) -> RunConfig:
    """The requested configuration with the settings above."""
    config = original_resolve(overrides, **more)
    teacher = (
        {"distill.teacher_settings": ("train.epochs=1", "train.batch_size=16")}
        if config.objective == "distill"
        else {}
    )
    smaller = SMALL_BATCH if config.dataset != "digits" else {}
    return original_resolve(dict(overrides or {}) | SHORT | smaller | teacher, **more)


if __name__ == "__main__":
    module.resolve = resolve
    from intnacl.cli import main

    main()
