"""The state of a run besides its tensors, and how a checkpoint stores it."""

import json
import math

import pytest

from intnacl.training.run_state import RunState


@pytest.mark.parametrize("worse", [None, math.nan, math.inf, 1.0, 2.0], ids=str)
def test_the_best_step_is_the_first_of_the_highest_score(worse):
    made = RunState()
    for step, score in ((1, math.nan), (2, 1.0), (3, 2.0)):
        made.step = step
        assert not made.is_best
        made.judge(score)
        assert made.is_best == (score in (1.0, 2.0))
    made.step = 4
    made.judge(worse)
    assert made.best == (2.0, 3)


def test_the_state_is_restored_from_a_checkpoints_json():
    made = RunState(step=7, sums={"loss": 1.5}, best=(0.25, 4))
    made.spent["seconds"] = 12.5
    assert RunState.at(7, json.loads(json.dumps(made.info()))) == made
    assert RunState.at(0, json.loads(json.dumps(RunState().info()))) == RunState()
    older = RunState.at(3, {"sums": {}, "best": None, "seconds": 9.0})
    assert older.spent == {"seconds": 9.0, "compiling": 0.0, "pausing": 0.0}
