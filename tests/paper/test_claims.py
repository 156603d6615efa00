"""Claims are judged by the right runs, within the chance that their seeds allow."""

import math
import statistics
from dataclasses import replace
from typing import Any

import pytest

from intnacl.paper.cells import RecordedRun
from intnacl.paper.claims import CLAIMS, LOSSES, Difference, judge, measured_claims
from intnacl.paper.grid import CIFAR
from intnacl.paper.published import find
from intnacl.paper.run_names import canonical
from intnacl.runs.resolve import resolve

Figures = dict[str, dict[str, float]]


def run(name: str, seed: int, accuracy: Figures | None, **changes: Any) -> RecordedRun:
    config = replace(canonical(resolve({**CIFAR, **LOSSES[name], **changes})), seed=seed)
    result = {"accuracy": accuracy, "attacks": [], "config": {"evaluation": {"eps": [0.002]}}}
    return RecordedRun(
        name=f"{name} {seed} {changes}", config=config, result=result if accuracy else None, error=None,
        departures=[], choices=[], command="",
    )  # fmt: skip


def both(fgsm: float, transferred: float) -> Figures:
    return {"cifar100": {"clean": 50.0, "fgsm": fgsm}, "cifar10": {"clean": 70.0, "fgsm": transferred}}


def verdict(runs: list[RecordedRun], text: str) -> tuple[str, list[Difference]]:
    (one,) = [one for one in judge({run.name: run for run in runs}) if one.claim.text == text]
    return one.verdict, list(one.differences)


LIFTS = "The robust term lifts robust accuracy where M = 1."  # by 9.02 and 10.95 in the paper


@pytest.mark.parametrize(
    ("fgsm", "transferred", "expected"),
    [
        (40.0, 60.0, "holds"), (35.0, 60.0, "holds in part"), (35.0, 53.0, "holds in part"),
        (30.1, 48.1, "does not hold"), (20.0, 30.0, "does not hold"),
        (40.0, 30.0, "holds in part"), (40.0, 48.1, "holds in part"),
    ],
)  # fmt: skip
def test_a_lift_is_compared_with_that_of_the_paper(fgsm, transferred, expected):
    runs = [run("Debiased+HardNeg", 0, both(30.0, 48.0)), run("IntCl", 0, both(fgsm, transferred))]
    found, differences = verdict(runs, LIFTS)
    assert found == expected
    assert [d.measured for d in differences] == pytest.approx([fgsm - 30, transferred - 48])
    assert [d.paper for d in differences] == pytest.approx([40.05 - 31.03, 59.33 - 48.38])


def test_chance_explains_twice_the_standard_error_of_the_difference():
    """s is pooled over the seeds and over the paper's trials of every loss.

    Twenty seeds each distinguish a lift of 8.6 from the number 9.02, but not from a difference of means of
    five.
    """
    published = [find(canonical(resolve({**CIFAR, **LOSSES[name]})), "cifar100", "fgsm") for name in LOSSES]
    spreads = [value.sd for value in published if value is not None]
    assert len(spreads) > 5
    for fgsm, lifted in (([29.0, 30.0, 31.5], [40.0]), ([30.0] * 20, [38.6] * 20)):
        runs = [run("Debiased+HardNeg", seed, both(value, 48.0)) for seed, value in enumerate(fgsm)]
        runs += [run("IntCl", seed, both(value, 60.0)) for seed, value in enumerate(lifted)]
        found, (lift, _) = verdict(runs, LIFTS)
        free, n, m = len(fgsm) - 1 + len(lifted) - 1, len(fgsm), len(lifted)
        ours = (n - 1) * statistics.variance(fgsm)
        s = math.sqrt((ours + 4 * sum(sd**2 for sd in spreads)) / (free + 4 * len(spreads)))
        assert lift.chance == pytest.approx(2 * s * math.sqrt(1 / n + 1 / m))
        assert lift.chance_from_paper == pytest.approx(2 * s * math.sqrt(1 / n + 1 / m + 2 / 5))
        assert (lift.seeds, found) == ((m, n), "holds")
    assert lift.chance < 9.02 - 8.6


def test_a_larger_spread_over_seeds_explains_more():
    names = ("Debiased+HardNeg", "IntCl")
    alone = [run(names[0], 0, both(30.0, 48.0)), run(names[1], 0, both(31.0, 49.0))]
    wild = [run(name, seed, both(f, f + 18)) for seed, f in enumerate((0, 30, 60), 1) for name in names]
    assert [verdict(runs, LIFTS)[0] for runs in (alone, alone + wild)] == ["does not hold", "within chance"]


def test_runs_of_other_settings_do_not_count():
    base = run("Debiased+HardNeg", 0, both(30.0, 48.0))
    others = [
        run("IntCl", 0, both(90.0, 90.0), **{"train.epochs": 200}),
        replace(run("IntCl", 1, both(90.0, 90.0)), choices=["augment.strength = 0.5"]),
        replace(run("IntCl", 2, both(90.0, 90.0)), departures=["batch size 128"]),
        run("IntCl with w = 1", 0, both(90.0, 90.0)),
        run("IntCl", 3, both(90.0, 90.0), objective="supervised"),
    ]
    assert verdict([base, *others], LIFTS)[0] == "not measured yet"
    assert measured_claims({one.name: one for one in (base, *others)}) == []
    assert len(measured_claims({one.name: one for one in (base, run("IntCl", 0, both(40.0, 60.0)))})) == len(
        CLAIMS
    )


@pytest.mark.parametrize(
    "accuracy", [None, {"cifar100": {"clean": 50.0, "fgsm": None}, "cifar10": {"clean": 70.0, "fgsm": None}}]
)
@pytest.mark.parametrize("order", [1, -1], ids=["before", "after"])
def test_a_run_without_the_figure_does_not_hide_one_of_the_same_seed_that_has_it(accuracy, order):
    """It may be planned again on another machine, or with other attacks."""
    done = run("IntCl", 0, both(40.0, 60.0), **{"train.precision": "bf16"})
    planned = run("IntCl", 0, accuracy, **{"train.precision": "fp32"})
    runs = [run("Debiased+HardNeg", 0, both(30.0, 48.0)), *[planned, done][::order]]
    assert verdict(runs, LIFTS)[0] == "holds"


def test_a_run_at_another_radius_does_not_count_under_attack():
    base = run("Debiased+HardNeg", 0, both(30.0, 48.0))
    strong = run("IntCl", 0, both(10.0, 12.0), **{"evaluation.eps": (0.008,)})
    assert verdict([base, strong], LIFTS)[0] == "not measured yet"
    runs = [base, run("IntCl", 0, both(40.0, 60.0)), strong]
    assert verdict(runs, LIFTS)[0] == "holds"
    assert verdict([base, strong], "IntCl does not sacrifice standard accuracy on CIFAR-100.")[0].endswith(
        "(1 of 5)"
    )


def test_missing_comparisons_are_counted_and_no_less_allows_for_chance():
    text = "IntCl does not sacrifice standard accuracy on CIFAR-100."
    simclr = run("SimCLR", 0, {"cifar100": {"clean": 54.0, "fgsm": 25.0}})

    def judged(clean: float) -> tuple[str, float]:
        found, differences = verdict([simclr, run("IntCl", 0, {"cifar100": {"clean": clean}})], text)
        return found, differences[0].chance or math.nan

    found, chance = judged(53.9)
    assert found == "holds so far (1 of 5)"
    for clean in (54.0 - 1.01 * chance, 50.0):
        assert judged(clean)[0] == "does not hold so far (1 of 5)"


def test_a_comparison_is_written_as_text():
    made = Difference(
        pair=("A", "B"), figure=("cifar10", "fgsm"), kind="more", measured=-1.234, chance=0.5, paper=2.0,
        chance_from_paper=0.6, seeds=(3, 1),
    )  # fmt: skip
    assert str(made) == "A over B, CIFAR-10 under FGSM: −1.23 ± 0.50 (n = 3 and 1; paper +2.00)"
    assert str(replace(made, measured=None, paper=None)) == "A over B, CIFAR-10 under FGSM: missing"


def test_claims_are_of_known_losses_and_most_have_published_differences():
    names = {name for claim in CLAIMS for pair in claim.pairs for name in pair}
    assert names == set(LOSSES)
    differences = [d for one in judge({}) for d in one.differences]
    assert sum(d.paper is not None for d in differences) > len(differences) / 2
    assert all(d.paper is not None for d in differences if d.kind == "as_much")
