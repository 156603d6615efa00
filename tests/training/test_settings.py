"""Settings of training: mistakes are named, and automatic ones are decided for the device."""

import pytest
import torch

from intnacl.training.settings import TrainConfig
from mistakes import refused

test_bad_settings_are_named = refused(
    lambda settings: TrainConfig(**settings),
    ({"epochs": 0}, r"train\.epochs=0 must be 1 or more"),
    ({"keep": 0}, r"train\.keep=0"),
    ({"save_steps": 0}, r"train\.save_steps=0"),
    ({"monitor_epochs": -1}, r"train\.monitor_epochs=-1 must be 0 or more"),
    ({"save_minutes": float("nan")}, r"train\.save_minutes=nan"),
    ({"precision": "fp8"}, r"train\.precision='fp8' is unknown"),
    ({"optimizer": "adan"}, "did you mean 'adam'"),
    ({"schedule": "cosin"}, "did you mean 'cosine'"),
    ({"lr": -1.0}, r"train\.lr=-1\.0"),
    ({"lr": float("nan")}, r"train\.lr=nan"),
    ({"weight_decay": float("inf")}, r"train\.weight_decay=inf"),
    ({"weight_decay": 1e300}, r"train\.weight_decay=1e\+300 must be a number from 0 to 3e38"),
    ({"clip": 0.0}, r"train\.clip=0\.0 must be above 0"),
)


# Without a capability, the GPU is elsewhere and the run is planned here.
DEVICES = [("cpu", None), *(("cuda", capability) for capability in (None, (7, 5), (8, 0), (12, 0)))]


@pytest.mark.parametrize(("device", "capability"), DEVICES)
def test_the_default_precision_is_one_that_the_device_computes_in(device, capability, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    precision = "fp32" if (device, capability) in (("cpu", None), ("cuda", (7, 5))) else "bf16"
    decided = TrainConfig().on(torch.device(device))
    assert (decided.precision, decided.compile, decided.cuda_graph) == (precision, *[device == "cuda"] * 2)
    given = TrainConfig(lr=0.1, precision="fp16", compile=True, cuda_graph=False)
    assert given.on(torch.device(device)) == given
