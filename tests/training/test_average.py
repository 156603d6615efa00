"""The moving average of the weights: against a loop, resumed, kept in the encoder, and off by default."""

import pytest
import torch
from pieces import StopAfter, Watched, contrastive, run, state, trainer

from intnacl.training.checkpoint import newest
from intnacl.training.trainer import Trainer


def averages(made: Trainer) -> dict[str, torch.Tensor]:
    with made.train_step.averaged():
        return state(made)


def test_the_average_equals_a_loop_over_weights_and_statistics(tmp_path):
    """With a smaller decay in the first updates: (1 + t) / (10 + t)."""
    made, seen = trainer(tmp_path, ema=0.5, epochs=4), []
    Watched(made, lambda: seen.append(state(made)))
    assert run(made) is None
    last = state(made)
    floats = [name for name, value in last.items() if value.is_floating_point()]
    expected = seen[0]
    for t, now in enumerate([*seen[1:], last]):
        decay = min(0.5, (1 + t) / (10 + t))
        expected = {k: decay * expected[k] + (1 - decay) * now[k] for k in floats}
    found = averages(made)
    torch.testing.assert_close({name: found[name] for name in floats}, expected)
    assert not torch.allclose(
        found["encoder.backbone.layers.1.running_mean"], last["encoder.backbone.layers.1.running_mean"]
    )
    torch.testing.assert_close(state(made), last, rtol=0, atol=0)  # given back


def test_the_average_is_resumed_and_measured_instead_of_the_weights(tmp_path):
    """Held-out images select the best average, too, and it is restored as it was at its step."""
    measured: list[dict[str, torch.Tensor]] = []

    def monitor(encoder: torch.nn.Module) -> dict[str, float]:
        measured.append({name: value.clone() for name, value in encoder.state_dict().items()})
        return {"knn": -float(len(measured))}  # the first is the best

    settings = {"ema": 0.9, "epochs": 3, "monitor_epochs": 1, "monitor": monitor}
    whole = trainer(tmp_path / "whole", **settings)
    assert run(whole) is None
    with whole.at_best() as found:
        assert found
        torch.testing.assert_close(dict(whole.objective.encoder.state_dict()), measured[0], rtol=0, atol=0)
    with whole.train_step.averaged():
        torch.testing.assert_close(dict(whole.objective.encoder.state_dict()), measured[2], rtol=0, atol=0)
    assert run(trainer(tmp_path / "pieces", **settings), StopAfter(5)) == "terminate"
    pieces = trainer(tmp_path / "pieces", **settings)
    assert run(pieces) is None
    torch.testing.assert_close(averages(pieces), averages(whole), rtol=0, atol=0)


def test_without_an_average_checkpoints_and_training_are_unchanged(tmp_path):
    plain, averaged = trainer(tmp_path / "plain"), trainer(tmp_path / "averaged", ema=0.9)
    assert run(plain) is run(averaged) is None
    torch.testing.assert_close(state(plain), state(averaged), rtol=0, atol=0)
    torch.testing.assert_close(averages(plain), state(plain), rtol=0, atol=0)
    kept = [newest(tmp_path / name / "checkpoints").optimizer for name in ("plain", "averaged")]
    assert set(kept[1]) - set(kept[0]) == {"average", "averaged"}


@pytest.mark.filterwarnings("default")  # the compiler has its own
def test_the_trial_update_before_training_does_not_change_the_average(tmp_path):
    made = trainer(tmp_path, contrastive("simclr"), ema=0.9, compile=True)
    before = averages(made)
    assert str(made.train_step.prepare(pytest.fail)) == "compiled"
    torch.testing.assert_close(averages(made), before, rtol=0, atol=0)
    assert int(made.train_step.average.updates) == 0
