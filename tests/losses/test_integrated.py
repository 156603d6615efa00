"""The family through its public interface: exact, stable, with little memory and clear errors."""

import inspect
import itertools
import math
import subprocess
import sys
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from intnacl import IntNaClLoss
from intnacl.losses.config import PRESETS, LossConfig, Preset, Weight
from mistakes import must_refuse, refused
from reference import adv, debiased, family, hard_rows, intcl, intnacl, mean, simclr

B, D, M = 5, 7, 3


def views(count: int, dtype: torch.dtype = torch.float64, b: int = B, d: int = D) -> list[Tensor]:
    return [torch.randn(b, d, dtype=dtype, requires_grad=True) for _ in range(count)]


def kinds(loss: IntNaClLoss, z: list[Tensor]) -> tuple[Tensor, Tensor, dict]:
    """Views in the order of `views_needed` as the arguments of a call."""
    need, (z0, z1, *others) = loss.views_needed, z
    adversarial = others.pop() if need.adversarial else None
    return z0, z1, {"extra": others[: need.extra], "mixed": others[need.extra :], "adversarial": adversarial}


def value(loss: IntNaClLoss, z: list[Tensor]) -> Tensor:
    z0, z1, rest = kinds(loss, z)
    return loss(z0, z1, **rest)


def relative(a: float, b: float) -> float:
    return abs(a - b) / abs(b)


ROBUST = itertools.product([0.7], (None, "g0", "g1", "g2"), ("loss", "relative", "one"))
COMBINATIONS = [
    dict(nacl=n, negatives=g, alpha=a, robust_negatives=r, weight=w, denominator=d, mix_negatives=m)
    for n, g, (a, r, w), d, m in itertools.product(
        ("nca", "mixnca"), ("g0", "g1", "g2"), [(0.0, None, "loss"), *ROBUST], ("N", "MN"), ("pair", "clean")
    )
]


@pytest.mark.parametrize("keywords", COMBINATIONS, ids=lambda k: "-".join(str(v) for v in k.values()))
def test_equals_the_loops_for_every_combination(keywords):
    for m, lam, t, tau, beta in ((1, 0.5, 0.5, 0.01, 1.0), (M, 0.7, 0.2, 0.1, 0.5), (2, 0.5, 1.0, 0.3, 2.0)):
        numbers = dict(lam=lam, temperature=t, tau_plus=tau, beta=beta)
        loss = IntNaClLoss(num_positives=m, **numbers, **keywords)
        z = views(sum(loss.views_needed))
        z0, z1, rest = kinds(loss, z)
        assert relative(value(loss, z).item(), family(z0, z1, **rest, **numbers, **keywords)) < 1e-9


def test_presets_equal_the_losses_of_table_1():
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
    assert tuple(calls) == tuple(PRESETS) == get_args(Preset)
    for name, (given, expected) in calls.items():
        assert relative(IntNaClLoss.preset(name)(z0, z1, **given).item(), expected) < 1e-9, name


@pytest.mark.parametrize("preset", [*PRESETS, "nca"])
@pytest.mark.parametrize("numbers", [{}, {"tau_plus": 0.2, "beta": 0.5, "temperature": 0.3}])
def test_gradients_match_finite_differences(preset, numbers):
    keywords = PRESETS.get(preset, {"negatives": "g1", "num_positives": 3})
    loss = IntNaClLoss(**keywords | numbers)
    assert torch.autograd.gradcheck(lambda *z: value(loss, list(z)), views(sum(loss.views_needed), b=3))


def test_one_positive_makes_nca_and_mixnca_the_base_loss():
    z0, z1 = views(2)
    for g in ("g0", "g1", "g2"):
        assert IntNaClLoss(negatives=g)(z0, z1) == IntNaClLoss(nacl="mixnca", negatives=g)(z0, z1)


def test_g2_contains_g1_contains_g0():
    z0, z1 = views(2)
    g0, g1 = IntNaClLoss(negatives="g0")(z0, z1), IntNaClLoss(negatives="g1")(z0, z1)
    torch.testing.assert_close(IntNaClLoss(negatives="g2", beta=0.0)(z0, z1), g1)
    torch.testing.assert_close(IntNaClLoss(negatives="g2", beta=0.0, tau_plus=0.0)(z0, z1), g0)
    assert abs(g1 - g0) > 1e-6  # the identities would be empty if the two did not differ


def test_alpha_zero_drops_the_robust_term_and_adv_is_intcl_with_g0_and_w_1():
    z0, z1, za = views(3)
    assert IntNaClLoss.preset("intcl", alpha=0.0)(z0, z1) == IntNaClLoss.preset("debiased_hardneg")(z0, z1)
    expected = IntNaClLoss.preset("intcl", negatives="g0", weight="one")(z0, z1, adversarial=za)
    assert IntNaClLoss.preset("adv")(z0, z1, adversarial=za) == expected


def test_independent_libraries_agree_on_nt_xent():
    from lightly.loss import NTXentLoss as Lightly
    from pytorch_metric_learning.losses import NTXentLoss as MetricLearning

    z0, z1 = views(2, torch.float32, b=16, d=32)
    ours = IntNaClLoss.preset("simclr", temperature=0.3)(z0, z1)
    torch.testing.assert_close(ours, Lightly(temperature=0.3)(z0, z1))
    labels = torch.arange(16).repeat(2)
    torch.testing.assert_close(ours, MetricLearning(temperature=0.3)(torch.cat([z0, z1]), labels))


def test_terms_add_up():
    loss = IntNaClLoss.preset("intnacl", alpha=0.3)
    z0, z1, rest = kinds(loss, views(sum(loss.views_needed)))
    terms = loss.terms(z0, z1, **rest)
    assert list(terms) == ["nacl", "robust", "loss"]
    torch.testing.assert_close(terms["nacl"] + 0.3 * terms["robust"], terms["loss"])
    torch.testing.assert_close(loss(z0, z1, **rest), terms["loss"])


def test_detached_weight_changes_the_gradient_and_not_the_value():
    z0, z1, za = views(3)

    def through_the_weight(loss: IntNaClLoss) -> Tensor | None:
        """The robust term depends on z1 only through its weight."""
        return torch.autograd.grad(loss.terms(z0, z1, adversarial=za)["robust"], z1, allow_unused=True)[0]

    attached, detached = (IntNaClLoss.preset("intcl", detach_weight=d) for d in (False, True))
    assert attached(z0, z1, adversarial=za) == detached(z0, z1, adversarial=za)
    assert through_the_weight(attached).abs().max() > 1e-3
    assert through_the_weight(detached) is None
    assert through_the_weight(IntNaClLoss.preset("intcl", weight="relative")) is None


@pytest.mark.parametrize("robust_negatives", [None, "g0"])
@pytest.mark.parametrize("detach_weight", [False, True])
def test_w_may_be_any_function_of_the_views_and_the_clean_loss(robust_negatives, detach_weight):
    z0, z1, za = views(3)
    w_B = torch.nn.functional.cosine_similarity(z0, z1)

    def gradients(weight, given: Tensor | None = None) -> tuple[Tensor, ...]:
        others = {"robust_negatives": robust_negatives, "detach_weight": detach_weight}
        value = IntNaClLoss.preset("intcl", weight=weight, **others)(z0, z1, adversarial=za, weight=given)
        return value, *torch.autograd.grad(value, (z0, z1, za), retain_graph=True)

    same = {
        "loss": lambda z0, z1, clean: clean,
        "relative": lambda z0, z1, clean: clean.detach() / clean.detach().mean(),
        "one": lambda z0, z1, clean: torch.ones(len(z0), dtype=torch.int64),
    }
    for name, function in same.items():
        torch.testing.assert_close(gradients(function), gradients(name))
    by_image, by_row = (lambda z0, z1, _: (z0 * z1).sum(-1)), (lambda z0, z1, _: (z0 * z1).sum(-1).repeat(2))
    torch.testing.assert_close(gradients(by_image), gradients("loss", w_B))
    torch.testing.assert_close(gradients(by_row), gradients("one", w_B))
    keywords = dict(nacl="nca", negatives="g2", alpha=1.0, robust_negatives=robust_negatives)
    expected = family(z0, z1, [], [], za, weight=w_B.tolist(), **keywords)
    assert relative(gradients(by_image)[0].item(), expected) < 1e-9


def test_settings_hold_only_names_of_weights():
    function = abs
    loss = IntNaClLoss.preset("intcl", weight=function)
    assert (loss.weight, loss.config) == (function, IntNaClLoss.preset("intcl").config)
    assert "weight=<built-in function abs>" in repr(loss)
    for value in (function, "mine"):
        must_refuse(LossConfig, r"loss, one, relative\. Only IntNaClLoss\(weight=…\) itself", weight=value)


def test_the_relative_weight_is_one_where_all_losses_are_zero():
    z0 = torch.eye(3, requires_grad=True)
    losses = [IntNaClLoss(alpha=1.0, weight=weight, temperature=1e-3) for weight in ("relative", "one")]
    assert IntNaClLoss(temperature=1e-3)(z0, z0) == 0
    terms = [loss.terms(z0, z0, adversarial=-z0)["robust"] for loss in losses]
    assert terms[0] == terms[1] > 0
    assert torch.autograd.grad(terms[0], z0)[0].isfinite().all()


EXTREME = {
    "random": lambda: torch.randn(4, 8),
    "identical": lambda: torch.ones(4, 8),
    "orthogonal": lambda: torch.eye(4, 8),
    "opposite": lambda: torch.ones(4, 8) * torch.tensor([1.0, -1.0, 1.0, -1.0])[:, None],
    "with a zero vector": lambda: torch.cat([torch.zeros(1, 8), torch.randn(3, 8)]),
    "huge": lambda: torch.randn(4, 8) * 1e18,
    "tiny": lambda: torch.randn(4, 8) * 1e-18,
    "two images": lambda: torch.randn(2, 8),
}


def assert_finite(loss: IntNaClLoss, z: list[Tensor]) -> None:
    result = value(loss, z)
    assert result.isfinite()
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(result, z))


@pytest.mark.parametrize("case", EXTREME)
@pytest.mark.parametrize("temperature", [0.01, 0.07, 0.5, 10.0])
@pytest.mark.parametrize("preset", ["simclr", "debiased", "hardneg", "intnacl"])
def test_extreme_inputs_give_finite_values_and_gradients(case, temperature, preset):
    loss = IntNaClLoss.preset(preset, temperature=temperature)
    assert_finite(loss, [EXTREME[case]().requires_grad_() for _ in range(sum(loss.views_needed))])


@pytest.mark.parametrize("tau_plus", [0.01, 0.5, 0.999])
def test_the_floor_of_the_estimator_and_many_positives_give_finite_gradients(tau_plus):
    z0 = torch.eye(2, 8, requires_grad=True)  # twins equal, others orthogonal: the difference is negative
    assert_finite(IntNaClLoss.preset("debiased", tau_plus=tau_plus, temperature=0.05), [z0, z0])
    assert_finite(IntNaClLoss(num_positives=200, tau_plus=tau_plus), views(201, torch.float32, b=2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_inputs_are_computed_in_float32(dtype):
    loss = IntNaClLoss.preset("intnacl", temperature=0.07)
    z = views(sum(loss.views_needed), dtype)
    full = [view.detach().float().requires_grad_() for view in z]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = value(loss, z)
        (gradient,) = torch.autograd.grad(ours, z[0])
    expected = value(loss, full)
    torch.testing.assert_close(ours, expected)
    assert (ours.dtype, gradient.dtype) == (torch.float32, dtype)
    wanted = torch.autograd.grad(expected, full[0])[0].to(dtype)
    torch.testing.assert_close(gradient, wanted, rtol=2e-2, atol=1e-3)


def test_kept_memory_grows_with_rows_not_with_their_square():
    def kept(pairs: int) -> int:
        storages: dict[int, int] = {}

        def pack(x: Tensor) -> Tensor:
            storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            IntNaClLoss.preset("debiased_hardneg")(*views(2, torch.float32, b=pairs, d=16))
        return sum(storages.values())

    assert 0 < kept(1024) < 4.2 * kept(256)
    assert kept(1024) < 2048 * 2048 * 4 / 8


@pytest.mark.parametrize("tile", [26 * 7, 1])  # 3 of 7 rows and a rest; smaller than a row
def test_tiles_do_not_change_the_result(monkeypatch, tile):
    loss = IntNaClLoss.preset("intnacl")
    z = views(sum(loss.views_needed), b=13)
    whole = torch.autograd.grad(value(loss, z), z)
    monkeypatch.setattr("intnacl.losses.similarity.TILE", tile)
    torch.testing.assert_close(torch.autograd.grad(value(loss, z), z), whole)


PEAK_OF_8192_PAIRS = """
import torch
from intnacl import IntNaClLoss
def peak(pairs):
    z = [torch.randn(pairs, 128, requires_grad=True) for _ in range(2)]
    IntNaClLoss.preset("debiased_hardneg")(*z).backward()
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024
print(-peak(8) + peak(8192))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_8192_pairs_raise_peak_memory_by_less_than_512_mib():
    run = [sys.executable, "-c", PEAK_OF_8192_PAIRS]
    out = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert 16 < float(out) < 512  # views and gradients alone are 16 MiB, a full similarity matrix 1,024


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("weight", [None, *get_args(Weight), lambda z0, z1, clean: clean.sqrt()])
@pytest.mark.parametrize("device", ["cpu", *["cuda"] * torch.cuda.is_available()])
def test_compiles_to_one_graph_with_its_backward(weight, device):
    """On a GPU with training's shapes: there Triton has failed on a kernel of the relative weight."""
    loss = IntNaClLoss.preset("intnacl", weight=weight) if weight else IntNaClLoss()
    b, d = (256, 128) if device == "cuda" else (B, D)
    z = [torch.randn(b, d, device=device, requires_grad=True) for _ in range(sum(loss.views_needed))]
    z0, z1, rest = kinds(loss, z)
    results = [call(z0, z1, **rest) for call in (loss, torch.compile(loss, fullgraph=True))]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*[torch.autograd.grad(one, z) for one in results], rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_a_compiled_loss_takes_a_smaller_last_batch():
    loss = IntNaClLoss()
    compiled = torch.compile(loss, fullgraph=True)
    for rows in (8, 6, 4):  # torch 2.11 compiles the second for all sizes
        z0, z1 = torch.randn(2, rows, D, requires_grad=True)
        torch.testing.assert_close(compiled(z0, z1), loss(z0, z1))


test_bad_settings_are_named = refused(
    lambda keywords: IntNaClLoss(**keywords),
    ({"nacl": "nc"}, r"nacl='nc'.*did you mean 'nca'.*mixnca, nca"),
    ({"negatives": "g3"}, r"negatives='g3'.*g0, g1, g2"),
    ({"robust_negatives": "g9"}, r"robust_negatives='g9'"),
    ({"weight": "two"}, r"weight='two'.*loss, one, relative"),
    ({"denominator": "NM"}, r"denominator='NM'.*MN, N"),
    ({"mix_negatives": "dirty"}, r"mix_negatives='dirty'.*clean, pair"),
    ({"num_positives": 0}, r"num_positives=0 must be a whole number from 1"),
    ({"num_positives": 2**70}, r"num_positives=\d+ must be a whole number from 1 to 2,147,483,647"),
    ({"gather": "yes"}, r"gather='yes' must be True or False"),
    ({"detach_weight": 1}, r"detach_weight=1 must be True or False"),
    ({"num_positives": 1.5}, r"num_positives=1.5 must be a whole number"),
    ({"lam": 1.2}, r"lam=1.2.*from 0 to 1"),
    ({"lam": -0.1}, r"lam=-0.1"),
    ({"alpha": -1.0}, r"alpha=-1.0.*from 0 to 1e\+18"),
    ({"alpha": math.inf}, r"alpha=inf is out of range"),
    ({"temperature": 0.0}, r"temperature=0.0.*from 1e-30"),
    ({"temperature": math.nan}, r"temperature=nan"),
    ({"temperature": 1e-300}, r"temperature=1e-300.*from 1e-30"),
    ({"tau_plus": 1.0}, r"tau_plus=1.0.*from 0 to below 1"),
    ({"beta": -0.5}, r"beta=-0.5.*from 0"),
    ({"temperature": "0.5"}, r"temperature='0.5' is of type str: give a plain number"),
    ({"temperature": torch.tensor(0.5, requires_grad=True)}, r"temperature=.*of type Tensor"),
)


def test_numpy_numbers_are_accepted():
    z = torch.randn(3, 4, 8)
    loss = IntNaClLoss(num_positives=np.arange(1, 3)[1], temperature=np.linspace(0.1, 0.5, 3)[1])
    expected = IntNaClLoss(num_positives=2, temperature=0.3)
    assert loss(z[0], z[1], extra=[z[2]]) == pytest.approx(float(expected(z[0], z[1], extra=[z[2]])))


def test_an_unknown_preset_or_keyword_is_named():
    with pytest.raises(ValueError, match=r"preset='sinclr'.*did you mean 'simclr'"):
        IntNaClLoss.preset("sinclr")
    with pytest.raises(ValueError, match=r"keyword='num_positive'.*did you mean 'num_positives'"):
        IntNaClLoss.preset("intnacl", num_positive=3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'temprature'"):
        IntNaClLoss(temprature=0.1)


def test_constructor_keywords_and_defaults_equal_those_of_the_settings():
    keywords = {p.name: p.default for p in inspect.signature(IntNaClLoss).parameters.values()}
    assert keywords == vars(LossConfig())
    assert list(keywords) == list(vars(LossConfig()))
    assert all(f"\n        {name}: " in IntNaClLoss.__doc__ for name in keywords)
    texts = {"nacl": "mixnca", "weight": "one", "denominator": "MN", "mix_negatives": "clean"}
    other = {"negatives": "g1", "robust_negatives": "g2", "num_positives": 2, **texts}
    for name, default in keywords.items():
        if name not in other:
            other[name] = not default if isinstance(default, bool) else default / 2 + 0.1
        assert other[name] != default
    assert vars(IntNaClLoss(**other).config) == other
    assert "negatives='g2'" in repr(IntNaClLoss.preset("hardneg"))


MIX = {"nacl": "mixnca", "num_positives": 2}


ROBUST_VIEW = {"adversarial": views(1)[0]}
test_missing_and_unused_views_are_named = refused(
    lambda keywords, given: IntNaClLoss(**keywords)(*views(2), **given),
    ({"num_positives": 3}, {}, r"extra: 0 views given, 2 needed.*further augmented view"),
    ({"num_positives": 3}, {"extra": views(1)}, r"extra: 1 views given, 2 needed"),
    ({}, {"extra": views(1)}, r"extra: 1 views given, 0 needed.*alpha=0\.0: leave out the others"),
    (MIX, {"mixed": None}, r"mixed: 0 views given, 1 needed.*views\.mix"),
    (MIX, {"extra": views(1), "mixed": views(1)}, r"extra: 1 views given, 0 needed"),
    ({"alpha": 1.0}, {}, r"adversarial: 0 views given, 1 needed.*alpha=1.0: .*adversarial_view"),
    ({}, ROBUST_VIEW, r"adversarial: 1 views given, 0 needed"),
    (MIX, {"mixed": views(1)[0]}, r"mixed is one view of shape .*: give a list, \[mixed\]"),
    ({"num_positives": 2}, {"extra": views(1)[0]}, r"extra is one view of shape.*, \[extra\]"),
    *(
        ({"alpha": 1.0}, ROBUST_VIEW | {"weight": weight}, r"weight is of shape .*: .* per image, \(5,\)")
        for weight in (torch.ones(B + 1), torch.ones(B, 1), torch.ones(()))
    ),
    ({"alpha": 1.0, "weight": lambda *_: 2.0}, ROBUST_VIEW, "weight is a float"),
    ({}, {"weight": torch.ones(B)}, "alpha=0 leaves out"),
)


SHAPES = [
    (torch.randn(4, 8), torch.randn(5, 8), r"z1 has shape \(5, 8\), z0 has \(4, 8\)"),
    (torch.randn(4, 8), torch.randn(4, 9), r"z1 has shape \(4, 9\)"),
    (torch.randn(4, 8, 1), torch.randn(4, 8, 1), r"z0 .*\(4, 8, 1\)"),
    (torch.ones(4, 8, dtype=torch.int64), torch.randn(4, 8), r"z0 is torch.int64"),
    (torch.randn(1, 8), torch.randn(1, 8), r"z0 has 1 rows: at least 2 .* drop_last=True"),
    (torch.rand(4, 3), (torch.rand(4, 3),), r"z1 is a tuple: expected a tensor"),
    (torch.rand(4, 3), np.ones((4, 3)), r"z1 is a ndarray: expected a tensor"),
    (torch.rand(4, 3), None, r"z1 is a NoneType: expected a tensor"),
]
test_wrong_shapes_are_named = refused(lambda z0, z1: IntNaClLoss()(z0, z1), *SHAPES)
test_they_are_without_other_ranks_too = refused(lambda z0, z1: IntNaClLoss(gather=True)(z0, z1), *SHAPES)


def test_views_may_be_stacked_generated_or_none():
    z0, z1, *others = views(4)
    for nacl, name in (("nca", "extra"), ("mixnca", "mixed")):
        loss = IntNaClLoss(nacl=nacl, num_positives=3)
        expected = loss(z0, z1, **{name: others})
        assert loss(z0, z1, **{name: torch.stack(others)}) == expected
        assert loss(z0, z1, **{name: (z for z in others)}) == expected
    assert IntNaClLoss()(z0, z1, extra=None, mixed=None, adversarial=None) == IntNaClLoss()(z0, z1)
