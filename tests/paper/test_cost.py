"""Estimates follow the measured step time."""

import pytest
from grids import jobs

from intnacl.paper.cost import STEP_S, plan_seconds, seconds, views
from intnacl.runs.config import resolve


@pytest.mark.parametrize(
    ("preset", "more", "count"),
    [
        ("simclr", {}, 2), ("simclr", {"loss.num_positives": 3}, 4), ("adv", {}, 4), ("intcl", {}, 4),
        ("intnacl", {}, 8), ("simclr", {"objective": "supervised"}, 1),
    ],
)  # fmt: skip
def test_views_of_an_image(preset: str, more: dict[str, object], count: int) -> None:
    assert views(resolve(more, preset=preset)) == count


def test_simclr_costs_the_measured_time_a_step() -> None:
    longer, shorter = (seconds(resolve({"dataset": "cifar100", "train.epochs": n})) for n in (101, 1))
    assert longer is not None
    assert shorter is not None
    assert (longer - shorter) == pytest.approx(100 * 195 * STEP_S)


def test_a_milestone_costs_what_it_adds() -> None:
    first, second = jobs(epochs=(1, 5))
    alone = seconds(second.config)
    assert alone is not None
    assert plan_seconds((first, second))[second.name] < alone


def test_unknown_data_sets_have_no_estimate() -> None:
    assert seconds(resolve({"dataset": "folder:x"})) is None
