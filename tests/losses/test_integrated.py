"""The family as a user meets it: exact, stable, light, kind."""

import inspect
import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from intnacl import IntNaClLoss
from intnacl.errors import InputError
from intnacl.losses.integrated import PRESETS, LossConfig
from reference import adv, debiased, family, hard_rows, intcl, intnacl, mean, simclr

B, D, M = 5, 7, 3


def views(count: int, dtype: torch.dtype = torch.float64, b: int = B, d: int = D) -> list[Tensor]:
    return [torch.randn(b, d, dtype=dtype, requires_grad=True) for _ in range(count)]


def inputs(loss: IntNaClLoss, dtype: torch.dtype = torch.float64, b: int = B) -> tuple[list[Tensor], dict]:
    """As many random views as the loss asks for."""
    need = loss.views_needed
    z = views(sum(need), dtype, b)
    adversarial = z[-1] if need.adversarial else None
    middle = z[2 : 2 + need.extra + need.mixed]
    return z, {"extra": middle[: need.extra], "mixed": middle[need.extra :], "adversarial": adversarial}


def relative(a: float, b: float) -> float:
    return abs(a - b) / abs(b)


ROBUST = [
    (0.0, None, "loss"),
    *itertools.product((0.7,), (None, "g0", "g1", "g2"), ("loss", "relative", "one")),
]
COMBINATIONS = [
    dict(nacl=n, negatives=g, alpha=a, robust_negatives=r, weight=w, denominator=d, mix_negatives=m)
    for n, g, (a, r, w), d, m in itertools.product(
        ("nca", "mixnca"),
        ("g0", "g1", "g2"),
        ROBUST,
        ("N", "MN"),
        ("pair", "clean"),
    )
]  # fmt: skip


@pytest.mark.parametrize("keywords", COMBINATIONS, ids=lambda k: "-".join(str(v) for v in k.values()))
def test_equals_the_loops_for_every_combination(keywords: dict) -> None:
    for m, lam, t, tau, beta in ((1, 0.5, 0.5, 0.01, 1.0), (M, 0.7, 0.2, 0.1, 0.5), (2, 0.5, 1.0, 0.3, 2.0)):
        numbers = dict(lam=lam, temperature=t, tau_plus=tau, beta=beta)
        loss = IntNaClLoss(num_positives=m, **numbers, **keywords)
        z, given = inputs(loss)
        expected = family(z[0], z[1], **given, **numbers, **keywords)
        assert relative(loss(z[0], z[1], **given).item(), expected) < 1e-9


def test_presets_equal_the_losses_of_table_1() -> None:
    z0, z1, za, *mixed = views(7)
    calls = {
        "simclr": ({}, simclr(z0, z1)),
        "debiased": ({}, debiased(z0, z1)),
        "hardneg": ({}, mean(hard_rows(z0, z1, tau=0.0))),
        "debiased_hardneg": ({}, mean(hard_rows(z0, z1))),
        "adv": ({"adversarial": za}, adv(z0, z1, za)),
        "intcl": ({"adversarial": za}, intcl(z0, z1, za)),
        "intnacl": ({"adversarial": za, "mixed": mixed}, intnacl(z0, z1, mixed, za)),
    }
    assert calls.keys() == PRESETS.keys()
    for name, (given, expected) in calls.items():
        assert relative(IntNaClLoss.preset(name)(z0, z1, **given).item(), expected) < 1e-9, name


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("keywords", [{}, {"tau_plus": 0.2, "beta": 0.5, "temperature": 0.3}])
def test_gradients_match_finite_differences(preset: str, keywords: dict) -> None:
    loss = IntNaClLoss.preset(preset, **keywords)
    z, _ = inputs(loss, b=3)
    need = loss.views_needed

    def value(z0: Tensor, z1: Tensor, *rest: Tensor) -> Tensor:
        return loss(z0, z1, mixed=rest[: need.mixed], adversarial=rest[-1] if need.adversarial else None)

    assert torch.autograd.gradcheck(value, z)


def test_nca_gradients_match_finite_differences() -> None:
    loss = IntNaClLoss(negatives="g1", num_positives=3)
    assert torch.autograd.gradcheck(lambda z0, z1, *extra: loss(z0, z1, extra=extra), views(4, b=3))


@pytest.mark.parametrize("g", ["g0", "g1", "g2"])
def test_one_positive_makes_nca_and_mixnca_the_base_loss(g: str) -> None:
    z0, z1 = views(2)
    assert IntNaClLoss(negatives=g)(z0, z1) == IntNaClLoss(nacl="mixnca", negatives=g)(z0, z1)


def test_g2_contains_g1_contains_g0() -> None:
    z0, z1 = views(2)
    g0, g1 = IntNaClLoss(negatives="g0")(z0, z1), IntNaClLoss(negatives="g1")(z0, z1)
    torch.testing.assert_close(IntNaClLoss(negatives="g2", beta=0.0)(z0, z1), g1)
    torch.testing.assert_close(IntNaClLoss(negatives="g2", beta=0.0, tau_plus=0.0)(z0, z1), g0)
    assert abs(g1 - g0) > 1e-6  # the identities would be empty if the two did not differ


def test_alpha_zero_drops_the_robust_term_and_adv_is_intcl_with_g0_and_w_1() -> None:
    z0, z1, za = views(3)
    assert IntNaClLoss.preset("intcl", alpha=0.0)(z0, z1) == IntNaClLoss.preset("debiased_hardneg")(z0, z1)
    expected = IntNaClLoss.preset("intcl", negatives="g0", weight="one")(z0, z1, adversarial=za)
    assert IntNaClLoss.preset("adv")(z0, z1, adversarial=za) == expected


def test_independent_libraries_agree_on_nt_xent() -> None:
    from lightly.loss import NTXentLoss as Lightly
    from pytorch_metric_learning.losses import NTXentLoss as MetricLearning

    z0, z1 = views(2, torch.float32, b=16, d=32)
    ours = IntNaClLoss.preset("simclr", temperature=0.3)(z0, z1)
    torch.testing.assert_close(ours, Lightly(temperature=0.3)(z0, z1))
    labels = torch.arange(16).repeat(2)
    torch.testing.assert_close(ours, MetricLearning(temperature=0.3)(torch.cat([z0, z1]), labels))


def test_terms_add_up() -> None:
    loss = IntNaClLoss.preset("intnacl", alpha=0.3)
    z, given = inputs(loss)
    terms = loss.terms(z[0], z[1], **given)
    assert list(terms) == ["nacl", "robust", "loss"]
    torch.testing.assert_close(terms["nacl"] + 0.3 * terms["robust"], terms["loss"])
    torch.testing.assert_close(loss(z[0], z[1], **given), terms["loss"])


def gradient_through_the_weight(loss: IntNaClLoss, z0: Tensor, z1: Tensor, za: Tensor) -> Tensor | None:
    """The robust term sees z1 through its weight alone."""
    return torch.autograd.grad(loss.terms(z0, z1, adversarial=za)["robust"], z1, allow_unused=True)[0]


def test_detached_weight_changes_the_gradient_and_not_the_value() -> None:
    z0, z1, za = views(3)
    attached, detached = (IntNaClLoss.preset("intcl", detach_weight=d) for d in (False, True))
    assert attached(z0, z1, adversarial=za) == detached(z0, z1, adversarial=za)
    assert gradient_through_the_weight(attached, z0, z1, za).abs().max() > 1e-3
    assert gradient_through_the_weight(detached, z0, z1, za) is None
    assert gradient_through_the_weight(IntNaClLoss.preset("intcl", weight="relative"), z0, z1, za) is None


def test_the_relative_weight_of_batches_without_a_loss_is_one() -> None:
    z0 = torch.eye(3, requires_grad=True)
    losses = [IntNaClLoss(alpha=1.0, weight=weight, temperature=1e-3) for weight in ("relative", "one")]
    assert IntNaClLoss(temperature=1e-3)(z0, z0) == 0
    terms = [loss.terms(z0, z0, adversarial=-z0)["robust"] for loss in losses]
    assert terms[0] == terms[1] > 0
    assert torch.autograd.grad(terms[0], z0)[0].isfinite().all()


def test_views_needed() -> None:
    assert IntNaClLoss.preset("simclr").views_needed == (2, 0, 0, 0)
    assert IntNaClLoss(num_positives=4).views_needed == (2, 3, 0, 0)
    need = IntNaClLoss.preset("intnacl").views_needed
    assert (need.plain, need.extra, need.mixed, need.adversarial) == (2, 0, 4, 1)


# ---- stable -----------------------------------------------------------------------------------------------

EXTREME = {
    "random": lambda: torch.randn(4, 8),
    "identical": lambda: torch.ones(4, 8),
    "orthogonal": lambda: torch.eye(4, 8),
    "opposite": lambda: torch.ones(4, 8) * torch.tensor([1.0, -1.0, 1.0, -1.0])[:, None],
    "with a zero vector": lambda: torch.cat([torch.zeros(1, 8), torch.randn(3, 8)]),
    "huge": lambda: torch.randn(4, 8) * 1e18,
    "tiny": lambda: torch.randn(4, 8) * 1e-18,
}


@pytest.mark.parametrize("case", EXTREME)
@pytest.mark.parametrize("temperature", [0.01, 0.07, 0.5, 10.0])
@pytest.mark.parametrize("preset", ["simclr", "debiased", "hardneg", "intnacl"])
def test_extreme_inputs_give_finite_values_and_gradients(case: str, temperature: float, preset: str) -> None:
    loss = IntNaClLoss.preset(preset, temperature=temperature)
    z = [EXTREME[case]().requires_grad_() for _ in range(sum(loss.views_needed))]
    need = loss.views_needed
    value = loss(z[0], z[1], mixed=z[2 : 2 + need.mixed], adversarial=z[-1] if need.adversarial else None)
    value.backward()
    assert value.isfinite()
    assert all(view.grad.isfinite().all() for view in z)


@pytest.mark.parametrize("tau_plus", [0.01, 0.5, 0.999])
def test_the_floor_of_the_estimator_gives_finite_gradients(tau_plus: float) -> None:
    z0 = torch.eye(2, 8, requires_grad=True)  # twins equal, others orthogonal: the difference is negative
    value = IntNaClLoss.preset("debiased", tau_plus=tau_plus, temperature=0.05)(z0, z0)
    (grad,) = torch.autograd.grad(value, z0)
    assert value.isfinite()
    assert grad.isfinite().all()


def test_two_images_and_many_positives() -> None:
    loss = IntNaClLoss(num_positives=200)
    z = views(201, torch.float32, b=2)
    value = loss(z[0], z[1], extra=z[2:])
    value.backward()
    assert value.isfinite()
    assert all(view.grad.isfinite().all() for view in z)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_inputs_are_computed_in_float32(dtype: torch.dtype) -> None:
    loss = IntNaClLoss.preset("intnacl", temperature=0.07)
    z, given = inputs(loss, dtype)
    full = {k: [v.float() for v in vs] if isinstance(vs, list) else vs.float() for k, vs in given.items()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(z[0], z[1], **given)
        value.backward()
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, loss(z[0].float(), z[1].float(), **full))
    assert z[0].grad.dtype == dtype
    expected = torch.autograd.grad(loss(z[0].float(), z[1].float(), **full), z[0])[0]
    torch.testing.assert_close(z[0].grad, expected, rtol=2e-2, atol=1e-3)


# ---- light ------------------------------------------------------------------------------------------------


def test_kept_memory_grows_with_rows_not_with_their_square() -> None:
    def kept(pairs: int) -> int:
        storages: dict[int, int] = {}

        def pack(x: Tensor) -> Tensor:
            storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        z0, z1 = views(2, torch.float32, b=pairs, d=16)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            value = IntNaClLoss.preset("debiased_hardneg")(z0, z1)
        assert value.requires_grad
        return sum(storages.values())

    assert kept(1024) < 4.2 * kept(256)
    assert kept(1024) < 2048 * 2048 * 4 / 8


@pytest.mark.parametrize("tile", [26 * 7, 1])  # 3 of 7 rows and a rest; smaller than a row
def test_tiles_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch, tile: int) -> None:
    loss = IntNaClLoss.preset("intnacl")
    z, given = inputs(loss, b=13)
    whole = torch.autograd.grad(loss(z[0], z[1], **given), z)
    monkeypatch.setattr("intnacl.losses.similarity.TILE", tile)
    parts = torch.autograd.grad(loss(z[0], z[1], **given), z)
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a, b)


PEAK_OF_8192_PAIRS = """
import threading, time, torch
from intnacl import IntNaClLoss
def mib():  # anonymous memory only: the kernel may map pages of the libraries at any time
    return int(open("/proc/self/status").read().split("RssAnon:")[1].split()[0]) / 1024
def watch():
    while not done.is_set():
        seen.append(mib())
        time.sleep(0.001)
loss = IntNaClLoss.preset("debiased_hardneg")
loss(*[torch.randn(8, 128, requires_grad=True) for _ in range(2)]).backward()  # starts autograd's threads
z = [torch.randn(8192, 128, requires_grad=True) for _ in range(2)]
before, seen, done = mib(), [], threading.Event()
watcher = threading.Thread(target=watch)
watcher.start()
loss(*z).backward()
done.set()
watcher.join()
print(max(seen) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_8192_pairs_raise_peak_memory_by_less_than_512_mib() -> None:
    run = [sys.executable, "-c", PEAK_OF_8192_PAIRS]
    out = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert 8 < float(out) < 512  # the gradients alone are 8 MiB, a full similarity matrix 1,024


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("preset", ["simclr", "intnacl"])
def test_compiles_to_one_graph_with_its_backward(preset: str) -> None:
    loss = IntNaClLoss.preset(preset)
    z, given = inputs(loss, torch.float32)
    eager = torch.autograd.grad(loss(z[0], z[1], **given), z)
    compiled = torch.autograd.grad(torch.compile(loss, fullgraph=True)(z[0], z[1], **given), z)
    for a, b in zip(eager, compiled, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("weight", ["loss", "one", "relative"])
def test_the_gpus_compiler_takes_every_weight(weight: str) -> None:
    """With training's shapes, since Triton has failed on one kernel of the relative weight alone."""
    loss = IntNaClLoss(negatives="g2", alpha=1.0, weight=weight)
    z = [torch.randn(256, 128, device="cuda", requires_grad=True) for _ in range(3)]
    ways = [call(z[0], z[1], adversarial=z[2]) for call in (loss, torch.compile(loss, fullgraph=True))]
    torch.testing.assert_close(*ways)
    torch.testing.assert_close(*[torch.autograd.grad(way, z) for way in ways], rtol=1e-4, atol=1e-6)


# ---- kind -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"nacl": "nc"}, r"nacl='nc'.*did you mean 'nca'.*mixnca, nca"),
        ({"negatives": "g3"}, r"negatives='g3'.*g0, g1, g2"),
        ({"robust_negatives": "g9"}, r"robust_negatives='g9'"),
        ({"weight": "two"}, r"weight='two'.*loss, one, relative"),
        ({"denominator": "NM"}, r"denominator='NM'.*MN, N"),
        ({"mix_negatives": "dirty"}, r"mix_negatives='dirty'.*clean, pair"),
        ({"num_positives": 0}, r"num_positives=0 must be.*1 or more"),
        ({"num_positives": 1.5}, r"num_positives=1.5 must be a whole number"),
        ({"lam": 1.2}, r"lam=1.2.*from 0 to 1"),
        ({"lam": -0.1}, r"lam=-0.1"),
        ({"alpha": -1.0}, r"alpha=-1.0.*0 or more"),
        ({"alpha": math.inf}, r"alpha=inf is out of range"),
        ({"temperature": 0.0}, r"temperature=0.0.*above 0"),
        ({"temperature": math.nan}, r"temperature=nan"),
        ({"temperature": 1e-300}, r"temperature=1e-300.*1e-30 at least"),
        ({"tau_plus": 1.0}, r"tau_plus=1.0.*below 1"),
        ({"beta": -0.5}, r"beta=-0.5.*0 or more"),
        ({"temperature": "0.5"}, r"temperature='0.5' is of type str: give a plain number"),
        ({"temperature": torch.tensor(0.5, requires_grad=True)}, r"temperature=.*of type Tensor"),
    ],
)
def test_bad_settings_are_named(keywords: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        IntNaClLoss(**keywords)


def test_numbers_of_a_sweep_are_numbers() -> None:
    z = torch.randn(3, 4, 8)
    loss = IntNaClLoss(num_positives=np.arange(1, 3)[1], temperature=np.linspace(0.1, 0.5, 3)[1])
    expected = IntNaClLoss(num_positives=2, temperature=0.3)
    assert loss(z[0], z[1], extra=[z[2]]) == pytest.approx(float(expected(z[0], z[1], extra=[z[2]])))


def test_an_unknown_preset_or_keyword_is_named() -> None:
    with pytest.raises(ValueError, match=r"preset='sinclr'.*did you mean 'simclr'"):
        IntNaClLoss.preset("sinclr")
    with pytest.raises(ValueError, match=r"keyword='temprature'.*did you mean 'temperature'"):
        IntNaClLoss(temprature=0.1)
    with pytest.raises(ValueError, match=r"keyword='num_positive'.*did you mean 'num_positives'"):
        IntNaClLoss.preset("intnacl", num_positive=3)


@pytest.mark.parametrize(
    ("keywords", "given", "message"),
    [
        ({"num_positives": 3}, {}, r"extra: 0 views given, 2 needed.*further augmented view"),
        ({"num_positives": 3}, {"extra": 1}, r"extra: 1 views given, 2 needed"),
        ({}, {"extra": 1}, r"extra: 1 views given, 0 needed.*alpha=0\.0: leave out the others"),
        ({"nacl": "mixnca", "num_positives": 2}, {}, r"mixed: 0 views given, 1 needed.*views\.mix"),
        ({"nacl": "mixnca", "num_positives": 2}, {"extra": 1, "mixed": 1}, r"extra: 1 views given, 0 needed"),
        ({"alpha": 1.0}, {}, r"adversarial: 0 views given, 1 needed.*alpha=1.0: .*adversarial_view"),
        ({}, {"adversarial": 1}, r"adversarial: 1 views given, 0 needed"),
    ],
)
def test_missing_and_unused_views_are_named(keywords: dict, given: dict, message: str) -> None:
    z0, z1 = views(2)
    arguments = {k: views(1)[0] if k == "adversarial" else views(n) for k, n in given.items()}
    with pytest.raises(ValueError, match=message):
        IntNaClLoss(**keywords)(z0, z1, **arguments)


@pytest.mark.parametrize(
    ("z0", "z1", "message"),
    [
        (torch.randn(4, 8), torch.randn(5, 8), r"z1 has shape \(5, 8\), z0 has \(4, 8\)"),
        (torch.randn(4, 8), torch.randn(4, 9), r"z1 has shape \(4, 9\)"),
        (torch.randn(4, 8, 1), torch.randn(4, 8, 1), r"z0 .*\(4, 8, 1\)"),
        (torch.ones(4, 8, dtype=torch.int64), torch.randn(4, 8), r"z0 is torch.int64"),
        (torch.randn(1, 8), torch.randn(1, 8), r"z0 has 1 rows: at least 2 .* drop_last=True"),
    ],
)
def test_wrong_shapes_are_named(z0: Tensor, z1: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        IntNaClLoss()(z0, z1)


def test_one_row_is_refused_where_gather_finds_no_other_rank() -> None:
    with pytest.raises(ValueError, match="z0 has 1 rows: at least 2"):
        IntNaClLoss(gather=True)(torch.randn(1, 8), torch.randn(1, 8))


@pytest.mark.parametrize(("nacl", "name"), [("nca", "extra"), ("mixnca", "mixed")])
def test_views_may_be_stacked_or_generated(nacl: str, name: str) -> None:
    loss = IntNaClLoss(nacl=nacl, num_positives=3)
    z0, z1, *others = views(4)
    expected = loss(z0, z1, **{name: others})
    assert loss(z0, z1, **{name: torch.stack(others)}) == expected
    assert loss(z0, z1, **{name: (z for z in others)}) == expected


def test_none_is_no_views() -> None:
    loss, (z0, z1) = IntNaClLoss(), views(2)
    assert loss(z0, z1, extra=None, mixed=None, adversarial=None) == loss(z0, z1)
    with pytest.raises(InputError, match="mixed: 0 views given, 1 needed"):
        IntNaClLoss(nacl="mixnca", num_positives=2)(z0, z1, mixed=None)


@pytest.mark.parametrize(("nacl", "name"), [("nca", "extra"), ("mixnca", "mixed")])
def test_a_view_that_is_in_no_list_is_not_taken_for_many(nacl: str, name: str) -> None:
    z0, z1, other = views(3)
    with pytest.raises(InputError, match=rf"{name} is one view of shape .*: give a list, \[{name}\]"):
        IntNaClLoss(nacl=nacl, num_positives=2)(z0, z1, **{name: other})


def test_every_keyword_is_shown_to_the_user() -> None:
    assert list(inspect.signature(IntNaClLoss).parameters) == list(LossConfig.__dataclass_fields__)
    assert "negatives='g2'" in repr(IntNaClLoss.preset("hardneg"))


def test_import_is_light() -> None:
    code = """import sys; from intnacl import IntNaClLoss
print([name for name in ("torchvision", "timm", "sklearn", "matplotlib", "rich") if name in sys.modules])"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


@pytest.mark.parametrize("wrong", [(torch.rand(4, 3), torch.rand(4, 3)), torch.rand(4, 3).numpy(), None])
def test_what_is_no_tensor_is_named(wrong: object) -> None:
    with pytest.raises(InputError, match=r"z1 is a (tuple|ndarray|NoneType): expected a tensor"):
        IntNaClLoss()(torch.rand(4, 3), wrong)
