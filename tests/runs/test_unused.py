import pytest

from intnacl.errors import InputWarning
from intnacl.runs.config import unused
from intnacl.runs.resolve import resolve, warn_of_unused


@pytest.mark.parametrize(
    ("settings", "name", "need"),
    [
        ({"loss.num_positives": 3}, "loss.lam", "loss.nacl=mixnca and loss.num_positives above 1"),
        ({"loss.nacl": "mixnca"}, "loss.lam", "loss.nacl=mixnca and loss.num_positives above 1"),
        ({}, "loss.nacl", "loss.num_positives above 1"),
        ({}, "adversary.eps", "loss.alpha above 0"),
        ({}, "loss.tau_plus", "loss.negatives=g1 or g2"),
        ({"loss.negatives": "g1"}, "loss.beta", "loss.negatives=g2"),
        ({"loss.alpha": 1.0}, "loss.detach_weight", "loss.weight=loss and loss.alpha above 0"),
        ({"objective": "supervised", "loss.alpha": 1.0}, "adversary.eps", "objective=contrastive"),
    ],
)
def test_what_a_run_does_not_use_and_what_would(settings: dict[str, object], name: str, need: str) -> None:
    assert unused(resolve(settings))[name] == need


def test_intnacl_uses_nearly_everything() -> None:
    config = resolve({"loss.weight": "loss"}, preset="intnacl")
    assert unused(config).keys() == {"loss.denominator"}


@pytest.mark.parametrize("name", ["loss.robust_negatives", "adversary.negatives"])
def test_one_hard_estimator_is_enough(name: str) -> None:
    config = resolve({"loss.negatives": "g0", "loss.alpha": 1.0, name: "g2"})
    assert not {"loss.tau_plus", "loss.beta"} & unused(config).keys()


def test_a_setting_without_effect_is_told() -> None:
    with pytest.warns(
        InputWarning, match=r"loss.lam=0.3 changes nothing here: it is used with loss.nacl=mix"
    ):
        warn_of_unused({"loss.lam": 0.3, "train.epochs": 2}, [resolve()])


def test_one_of_several_runs_is_enough(recwarn: pytest.WarningsRecorder) -> None:
    warn_of_unused({"loss.lam": 0.3}, [resolve(), resolve(preset="intnacl")])
    assert not recwarn.list
