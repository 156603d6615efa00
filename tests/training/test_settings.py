"""How a run is trained: mistakes are named, and what was left open is decided for the device."""

import pytest
import torch

from intnacl.errors import InputError
from intnacl.training.settings import TrainConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, r"train\.epochs=0 must be 1 or more"),
        ({"keep": 0}, r"train\.keep=0"),
        ({"save_steps": 0}, r"train\.save_steps=0"),
        ({"monitor_epochs": -1}, r"train\.monitor_epochs=-1 must be 0 or more"),
        ({"save_minutes": float("nan")}, r"train\.save_minutes=nan"),
        ({"precision": "fp8"}, r"train\.precision='fp8' is unknown"),
        ({"lr": -1.0}, r"train\.lr=-1\.0"),
    ],
)
def test_bad_settings_are_named(settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrainConfig(**settings)


@pytest.mark.parametrize(
    ("device", "capability", "precision"),
    [
        ("cpu", None, "fp32"),
        ("cuda", None, "bf16"),  # planned here for a GPU elsewhere
        ("cuda", (7, 5), "fp32"),
        ("cuda", (8, 0), "bf16"),
        ("cuda", (12, 0), "bf16"),
    ],
)
def test_the_usual_precision_is_one_that_the_device_computes_in(
    device: str, capability: tuple[int, int] | None, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert TrainConfig().on(torch.device(device)).precision == precision
    assert TrainConfig(precision="fp16").on(torch.device(device)).precision == "fp16"
