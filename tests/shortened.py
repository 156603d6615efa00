"""`python tests/shortened.py ARGUMENTS`: the command `intnacl`, with runs shortened to seconds.

The code blocks of the pages run with it. It changes nothing but these settings of what the command would do.
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
BATCH = {"train.batch_size": 16}  # of sets other than the digits, which have few images here
whole = module.resolve


def resolve(overrides: dict[str, Any] | None = None, **more: Any) -> RunConfig:
    """The configuration that was asked for, with the settings above."""
    config = whole(overrides, **more)
    given = (
        {"distill.teacher_settings": ("train.epochs=1", "train.batch_size=16")}
        if config.objective == "distill"
        else {}
    )
    smaller = BATCH if config.dataset != "digits" else {}
    return whole(dict(overrides or {}) | SHORT | smaller | given, **more)


if __name__ == "__main__":
    module.resolve = resolve
    from intnacl.cli import main

    main()
