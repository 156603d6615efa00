"""Any value for an argument of the losses and attacks either works or raises an `InputError`."""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from intnacl import IntNaClLoss
from intnacl.attacks import adversarial_view, fgsm, input_gradient, pgd
from intnacl.attacks.named import named_attack
from intnacl.attacks.training_view import AdversaryConfig
from intnacl.data.views import mix
from intnacl.errors import InputError
from intnacl.losses.config import PRESETS, LossConfig
from intnacl.losses.negatives import estimator, log_estimate

Z, X, Y = torch.rand(4, 8), torch.rand(4, 3, 4, 4), torch.arange(4)
MODEL = nn.Sequential(nn.Flatten(), nn.Linear(48, 5)).eval()
JUNK = [
    None, "0.5", "", b"x", object(), [], {}, [0.5], {"a": 1}, math.nan, math.inf, -1, 0, 1, 2, 1.5, 2**63,
    -(2**70), 10**400, 1e300, 1e-320, True, 1j, Fraction(1, 2), np.float32(0.5), np.int64(2), np.array(0.5),
    np.ones((4, 8)), torch.tensor(0.5), torch.tensor([]), torch.tensor([1, 2]), len, int, nn.Linear(2, 2),
]  # fmt: skip
DTYPES = ("float64", "bfloat16", "float8_e4m3fn", "complex64", "int32", "uint8", "bool")


def tensors(z: Tensor) -> list[object]:
    """Return tensors of other ranks, sizes, types, layouts, devices and values, and values of other types."""
    nested = torch.nested.nested_tensor([z[0], z[1]], layout=torch.jagged)
    return [
        z[0], z.flatten()[0], z[None], z[:0], z[:1], z[:3], z[:, :0], z.mT, z * math.nan, z - 9, z * 1e38,
        nested, z.to("meta"), z.to_sparse(), z.numpy(), [z], *JUNK,
        *(z.to(getattr(torch, name)) for name in DTYPES),
    ]  # fmt: skip


MODELS = [
    lambda x: (MODEL(x), x), lambda x: None, lambda x: MODEL(x)[:2], lambda x: MODEL(x).sum(),
    lambda x: MODEL(x)[0], lambda x: MODEL(x)[:, :, None], lambda x: MODEL(x)[:, :1],
    lambda x: MODEL(x).long(), lambda x: MODEL(x).detach(), lambda x: MODEL(x) * math.nan,
    lambda x: MODEL(x).to("meta"), lambda: 1, nn.Linear(3, 3), nn.Conv2d(1, 5, 4),
    nn.Sequential(nn.Flatten(), nn.Linear(48, 5).double()), lambda x: torch.rand(4, 5, requires_grad=True),
    *JUNK,
]  # fmt: skip
LABELS = [
    Y[:3], Y[None], Y[0], Y.float(), Y.double(), Y.int(), Y.to(torch.uint8), Y > 1, Y + 5, Y - 9,
    Y.to("meta"), torch.rand(4, 5), torch.rand(4, 5).double(), torch.rand(4, 6), Y.tolist(), *JUNK,
]  # fmt: skip
LOSSES = [
    nn.CrossEntropyLoss(), lambda z, y: None, lambda z, y: 1.0, lambda z, y: z, lambda z, y: z.argmax(1),
    lambda z, y: z[:2, 0], lambda z, y: z.sum().detach(), lambda z, y: z.sum(1) * math.nan, *JUNK,
]  # fmt: skip


def loss(**given: object) -> Tensor:
    """Return the loss with some of its settings and views replaced."""
    settings = {key: given.pop(key) for key in [*vars(LossConfig()), "name"] if key in given}
    made = (IntNaClLoss.preset if "name" in settings else IntNaClLoss)(**settings)
    need = made.views_needed
    if max(need) > 9:
        return torch.zeros(())
    views = {kind: [Z.clone().requires_grad_() for _ in range(n)] for kind, n in need._asdict().items()}
    (z0, z1), (za,) = views["plain"], views["adversarial"] or [None]
    usual = dict(z0=z0, z1=z1, extra=views["extra"], mixed=views["mixed"], adversarial=za)
    value = made(**usual | given)
    value.backward()
    return value


def each(names: str, values: list[object]) -> dict[str, list[object]]:
    """Return the same values for every argument."""
    return dict.fromkeys(names.split(), values)


SETTINGS, VIEWS = each(" ".join(vars(LossConfig())), JUNK), "z0 z1 extra mixed adversarial"
WEIGHTS = [torch.ones(4), torch.ones(8).int(), torch.ones(4) * 1j, lambda a, b, c: c[:3], *tensors(Z)]
G = estimator("g2", 0.1, 1.0)
ESTIMATORS = [G._replace(beta=-1), G._replace(tau_plus=2), G._replace(beta="1"), *JUNK]
FGSM, GRADIENT = partial(fgsm, model=MODEL, x=X, y=Y, eps=0.1), partial(input_gradient, model=MODEL, x=X, y=Y)
BATCH = {"x": tensors(X), "y": LABELS, "model": MODELS, "loss": LOSSES}
CRITERIA = [*map(IntNaClLoss.preset, PRESETS), *JUNK]
CASES: dict[str, tuple[Callable[..., object], dict[str, list[object]]]] = {
    "settings": (loss, SETTINGS),
    "settings of a preset": (partial(loss, name="intnacl"), SETTINGS),
    "presets": (loss, {"name": JUNK}),
    **{name: (partial(loss, name=name), each(VIEWS, tensors(Z)) | {"weight": WEIGHTS}) for name in PRESETS},
    "lists of views": (partial(loss, name="intnacl"), {"mixed": [[Z, z, Z, Z] for z in tensors(Z)]}),
    "extra views": (partial(loss, num_positives=3), {"extra": [[Z, z] for z in tensors(Z)]}),
    "gathered": (partial(loss, gather=True), {"z1": tensors(Z)}),
    "mix": (partial(mix, x=Z, lam=0.5, shift=1), {"x": tensors(Z), "lam": JUNK, "shift": JUNK}),
    "estimators": (partial(estimator, tau_plus=0.1, beta=1.0), {"name": JUNK}),
    "log_estimate": (
        partial(log_estimate, negatives_RU=Z, positives_RV=Z, g=G, temperature=0.5),
        each("negatives_RU positives_RV", tensors(Z)) | {"g": ESTIMATORS, "temperature": JUNK},
    ),
    "fgsm": (FGSM, BATCH | {"eps": JUNK, "clamp": JUNK}),
    "fgsm without a box": (partial(FGSM, clamp=False), {"x": tensors(X)}),
    "fgsm of another loss": (partial(FGSM, loss=nn.CrossEntropyLoss()), {"y": LABELS}),
    "gradient": (GRADIENT, BATCH),
    "pgd": (
        partial(pgd, model=MODEL, x=X, y=Y, eps=0.1, step_size=0.05, steps=2, restarts=1),
        BATCH | each("eps step_size steps restarts batch_size random_start stop_when_fooled generator", JUNK),
    ),
    "named": (lambda **given: named_attack("pgd", 0.1, **given), each("steps images seed eps no", JUNK)),
    "view": (
        partial(adversarial_view, encoder=MODEL, x=X, eps=0.1),
        {"x": tensors(X), "encoder": MODELS, "random_start": tensors(X), "criterion": CRITERIA}
        | each("eps steps clamp", JUNK),
    ),
    "adversary": (AdversaryConfig, each(" ".join(vars(AdversaryConfig())), JUNK)),
}


@pytest.mark.parametrize("case", CASES)
def test_malformed_input_is_an_input_error(case):
    function, arguments = CASES[case]
    outcomes, foreign = set(), []
    for name, values in arguments.items():
        for value in values:
            try:
                function(**{name: value})
                outcomes.add("answer")
            except InputError:
                outcomes.add("refusal")
            except Exception as error:
                foreign.append(f"{name}={value!r}: {error!r}")
    assert not foreign, "\n".join(foreign)
    assert "refusal" in outcomes
