"""The settings of the loss, their ranges, and the presets of the paper's Table 1."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from intnacl.errors import (
    Check,
    InputError,
    Settings,
    check_bool,
    check_choice,
    check_count,
    is_number,
    one_of,
    setting,
)

NaCl = Literal["nca", "mixnca"]
Negatives = Literal["g0", "g1", "g2"]
Weight = Literal["loss", "relative", "one"]
Denominator = Literal["N", "MN"]
MixNegatives = Literal["pair", "clean"]
Preset = Literal["simclr", "debiased", "hardneg", "debiased_hardneg", "adv", "intcl", "intnacl"]

LARGEST = 1e18  # weight or exponent: a larger integer does not fit into a tensor

# The paper's Table 1, a row each; every other setting is the constructor's default.
PRESETS: dict[str, dict[str, Any]] = {
    "simclr": {},
    "debiased": {"negatives": "g1"},
    "hardneg": {"negatives": "g2", "tau_plus": 0.0},
    "debiased_hardneg": {"negatives": "g2"},
    "adv": {"alpha": 1.0, "weight": "one"},
    "intcl": {"negatives": "g2", "alpha": 1.0},
    "intnacl": {"nacl": "mixnca", "negatives": "g2", "num_positives": 5, "lam": 0.5, "alpha": 1.0},
}


def number(low: float, high: float, *, below: bool = False) -> Check:
    """Return a check for a number from `low` to `high`, or to `below` it.

    Tensors are refused, since part of their gradient would be lost.
    """

    def check(name: str, value: Any) -> None:
        if not is_number(value):
            raise InputError(f"{name}={value!r} is of type {type(value).__name__}: give a plain number.")
        if not low <= value <= high or (below and value == high):
            to = "to below" if below else "to"
            raise InputError(f"{name}={value!r} is out of range: it must be from {low:g} {to} {high:g}.")

    return check


def weight_name(name: str, value: Any) -> None:
    """Raise unless `value` is the name of a weight: settings are stored as JSON, without functions."""
    try:
        check_choice(name, value, get_args(Weight))
    except InputError as error:
        raise InputError(f"{error} Only IntNaClLoss(weight=…) itself also takes a function.") from None


@dataclass(frozen=True, kw_only=True)
class LossConfig(Settings):
    """The keywords of `IntNaClLoss`; the defaults are SimCLR."""

    nacl: str = setting("nca", one_of(*get_args(NaCl)))
    """"nca": M views of an image are its positives; "mixnca": M − 1 mixed views are partial positives."""
    negatives: str = setting("g0", one_of(*get_args(Negatives)))
    """The estimator G¹: "g0" plain mean, "g1" debiased, "g2" debiased and weighted towards hard negatives."""
    num_positives: int = setting(1, check_count, flag=True)
    """M, the number of positives; a step needs M − 1 extra views (nca) or mixed views (mixnca)."""
    lam: float = setting(0.5, number(0, 1), flag=True)
    """λ, the share of the image itself in a mixed view (mixnca)."""
    alpha: float = setting(0.0, number(0, LARGEST), flag=True)
    """α, the weight of the robust term; 0 leaves it out, and no adversarial view is needed."""
    robust_negatives: str | None = setting(None, one_of(*get_args(Negatives)))
    """The estimator G² of the robust term; None: the same as `negatives`."""
    weight: str = setting("loss", weight_name)
    """w of the robust term: "loss" = ŵ(x), the clean loss of the same row; "relative" = ŵ(x) divided by its
    mean over the batch, a constant; "one" = 1. `IntNaClLoss` in Python also takes a function."""
    temperature: float = setting(0.5, number(1e-30, LARGEST))  # 1/t fits into a float32
    """t, by which similarities are divided."""
    tau_plus: float = setting(0.01, number(0, 1, below=True))
    """τ⁺, the assumed share of positives among the negatives (g1, g2)."""
    beta: float = setting(1.0, number(0, LARGEST))
    """β, how strongly hard negatives are weighted (g2)."""
    detach_weight: bool = setting(False, check_bool)
    """Treat w as a constant in the gradient, as "relative" always does."""
    denominator: str = setting("N", one_of(*get_args(Denominator)))
    """"N": S + N·G as in the paper's main text; "MN": S + M·N·G as in its Appendix B (nca)."""
    mix_negatives: str = setting("pair", one_of(*get_args(MixNegatives)))
    """"pair": a mixed view's negatives are the other rows of (z0, mixed); "clean": those of (z0, z1), which
    is closest to the paper."""
    gather: bool = setting(False, check_bool)
    """Take negatives from all ranks of torch.distributed, which must have the same number of rows."""
