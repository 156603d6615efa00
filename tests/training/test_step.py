"""One update: accumulation, clipping, half precision, compilation and its fall-back."""

import copy
import functools
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pieces import contrastive, labelled_images
from torch import Tensor

from intnacl.errors import InputError
from intnacl.evaluation.precision import exact_float32
from intnacl.training.objectives import Contrastive
from intnacl.training.optimizers import OptimizerConfig, build_optimizer
from intnacl.training.step import StepMode, Stepper, memory_errors

B = 8


def stepper(
    objective: Contrastive | None = None,
    *,
    batches: int = 1,
    precision: str = "fp32",
    clip: float | None = None,
    optimizer: str = "sgd",
    lr: float = 0.1,
) -> Stepper:
    objective = (objective or contrastive()).train()
    if precision == "fp64":
        objective.double()
    config = OptimizerConfig(optimizer=optimizer, lr=lr, momentum=0.0 if optimizer == "sgd" else 0.9)
    made = build_optimizer(objective.model, config, torch.device("cpu"))
    images, labels = labelled_images()
    return Stepper(
        objective, made, images, labels, torch.arange(B), batches=batches, precision=precision, clip=clip
    )


def weights(made: Stepper) -> Tensor:
    return torch.cat([p.detach().flatten().double() for p in made.objective.model.parameters()])


def gradient(made: Stepper, index_B: Tensor, step: int) -> Tensor:
    """The gradient of one batch, by autograd alone."""
    terms = made.objective(made.images[index_B], None, made.rows, torch.tensor(step))
    grads = torch.autograd.grad(terms["loss"], list(made.objective.model.parameters()))
    return torch.cat([g.flatten().double() for g in grads])


def test_an_update_is_a_step_down_the_gradient_and_returns_the_terms() -> None:
    made, same = stepper(precision="fp64"), stepper(precision="fp64")
    index = torch.arange(B)
    before, expected = weights(made), gradient(same, index, 3)
    terms = made(index[None], 3)
    torch.testing.assert_close(weights(made), before - 0.1 * expected, rtol=1e-6, atol=1e-9)
    assert made.names == ["nacl", "robust", "loss"]
    torch.testing.assert_close(terms[2], terms[0] + terms[1])
    assert all(p.grad is None for p in made.objective.model.parameters())


def test_k_batches_are_the_mean_of_their_gradients() -> None:
    made, same = stepper(batches=3, precision="fp64"), stepper(precision="fp64")
    index = torch.randperm(64)[: 3 * B].view(3, B)
    before = weights(made)
    expected = torch.stack([gradient(same, index[i], 5 + i) for i in range(3)]).mean(0)
    terms = made(index, 5)
    torch.testing.assert_close(weights(made), before - 0.1 * expected, rtol=1e-6, atol=1e-9)
    losses = [
        same.objective(same.images[index[i]], None, same.rows, torch.tensor(5 + i))["loss"] for i in range(3)
    ]
    torch.testing.assert_close(terms[2].double(), torch.stack(losses).mean().detach(), rtol=1e-5, atol=1e-6)


def test_clipping_bounds_the_norm_of_the_gradient() -> None:
    made, same = stepper(clip=0.5, precision="fp64"), stepper(precision="fp64")
    before, grad = weights(made), gradient(same, torch.arange(B), 0)
    assert grad.norm() > 0.5
    made(torch.arange(B)[None], 0)
    torch.testing.assert_close(weights(made), before - 0.1 * 0.5 * grad / grad.norm(), rtol=1e-4, atol=1e-7)
    free, bound = stepper(clip=1e9), stepper()
    free(torch.arange(B)[None], 0), bound(torch.arange(B)[None], 0)
    torch.testing.assert_close(weights(free), weights(bound))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_runs_on_a_cpu_and_stays_near(precision: str) -> None:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    half, full = stepper(contrastive(dtype=dtype), precision=precision), stepper()
    seen = []
    half.objective.model.encoder.backbone.layers[0].register_forward_hook(lambda *a: seen.append(a[2].dtype))
    index = torch.arange(B)[None]
    torch.testing.assert_close(half(index, 0), full(index, 0), rtol=0.02, atol=0.02)
    before = weights(half)
    for step in range(1, 5):  # the scale of fp16 begins too large and comes down
        assert half(index, step).isfinite().all()
    assert not torch.equal(weights(half), before)
    assert set(seen) == {dtype}
    assert all(p.dtype == torch.float32 for p in half.objective.model.parameters())
    assert weights(half).isfinite().all()
    assert half.scaler.is_enabled() == (precision == "fp16")


def test_clipping_sees_gradients_without_the_scale_of_fp16() -> None:
    scaled = stepper(contrastive(dtype=torch.float16), precision="fp16", clip=0.5)
    before = weights(scaled)
    scaled(torch.arange(B)[None], 0)
    moved = (weights(scaled) - before).norm().item()
    assert moved == pytest.approx(0.1 * 0.5, rel=1e-2) or moved == 0  # a first scale too large skips the step


# ---- the ways --------------------------------------------------------------------------------------------


def said() -> tuple[list[str], object]:
    lines: list[str] = []
    return lines, lines.append


def compare_ways(compiled: Stepper, eager: Stepper) -> None:
    """Three updates of each from the same state."""
    index = torch.arange(B)[None]
    for step in range(1, 4):
        torch.testing.assert_close(eager(index, step), compiled(index, step), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weights(eager), weights(compiled), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("default")  # the compiler has its own
@pytest.mark.parametrize("preset", ["simclr", pytest.param("intnacl", marks=pytest.mark.slow)])
def test_eager_and_compiled_updates_agree(preset: str) -> None:
    """In float64, where nothing but a wrong derivative makes a difference.

    The compiled backward pass recomputes parts of the forward pass when batch norm's buffers have moved.
    """
    objectives = (contrastive(preset, dtype=torch.float64) for _ in range(2))
    eager, compiled = (stepper(objective, precision="fp64", lr=1e-2) for objective in objectives)
    lines, say = said()
    assert str(compiled.prepare(compiled=True, graph=False, say=say)) == "compiled", lines
    assert lines == []
    compare_ways(compiled, eager)


@pytest.mark.filterwarnings("default")  # the compiler has its own
def test_later_runs_of_a_process_are_compiled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch compiles a function so many times for other settings (eight, here one), then no more."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    limits = {"cache_size_limit": 1, "fail_on_cache_limit_hit": True}
    lines, say = said()
    with torch._dynamo.config.patch(limits):
        for temperature in (0.2, 0.5):
            made = stepper(contrastive("simclr", loss={"temperature": temperature}))
            assert str(made.prepare(compiled=True, graph=False, say=say)) == "compiled", lines


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("default")  # the compiler has its own
@pytest.mark.parametrize("number", range(max(1, min(2, torch.cuda.device_count()))))
@pytest.mark.parametrize(("preset", "tolerance", "turned"), [("simclr", 1e-4, 0.1), ("intnacl", 5e-3, 0.4)])
def test_the_gpus_way_is_the_eager_one(preset: str, tolerance: float, turned: float, number: int) -> None:
    """Kernels of our own, compiled parts and one graph, against plain torch, both in float32.

    At the rate of training, six steps of Adam turn a rounding of 1e-7 into 1e-2 of the loss, in eager torch
    against itself; so the rate is small here, and the weights must have moved the same way. An adversarial
    view is a sign, which rounding may turn. Where there is a second GPU, it does the same while the first is
    the current one.
    """
    device, size = torch.device("cuda", number), 64
    images = labelled_images(4 * size)[0].to(device)
    losses, moves, statistics = [], [], []
    for fast in (False, True):
        objective = contrastive(preset, name="resnet18").to(device).train()
        objective.to(memory_format=torch.channels_last)
        optimizer = build_optimizer(objective.model, OptimizerConfig(lr=3e-6), device)
        rows = torch.arange(size, device=device)
        made = Stepper(objective, optimizer, images, None, rows, batches=1, precision="fp32", clip=None)
        before = weights(made)
        with exact_float32():
            way = made.prepare(compiled=fast, graph=fast, say=pytest.fail)
            terms = [made(rows[None] + size * (step % 4), step).clone() for step in range(6)]
        assert str(way) == ("compiled + CUDA graph" if fast else "eager")
        losses.append(torch.stack(terms))
        moves.append(weights(made) - before)
        statistics.append(torch.cat([b.flatten().double() for b in objective.model.buffers()]))
    torch.testing.assert_close(*losses, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(*statistics, rtol=tolerance, atol=tolerance)
    assert (moves[0] - moves[1]).norm() < turned * moves[0].norm()


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "lars"])
@pytest.mark.parametrize("begun", [True, False], ids=["begun", "fresh"])
def test_the_trial_leaves_no_trace(optimizer: str, begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda **_: lambda part: part)
    eager, tried = (stepper(optimizer=optimizer, lr=1e-3) for _ in range(2))
    for made in (eager, tried) if begun else ():
        made(torch.arange(B)[None], 0)
    before = {name: t.clone() for name, t in tried.objective.model.state_dict().items()}
    state = copy.deepcopy(tried.optimizer.state_dict()["state"])
    assert str(tried.prepare(compiled=True, graph=False, say=print)) == "compiled"
    after = tried.objective.model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    for key, values in state.items():
        now = tried.optimizer.state_dict()["state"][key]
        assert all(torch.equal(now[name], values[name]) for name in values if values[name] is not None)
    for step in range(1, 4):
        eager(torch.arange(B)[None], step), tried(torch.arange(B)[None], step)
    assert torch.equal(weights(eager), weights(tried))


def test_the_trial_leaves_the_gradient_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda **_: lambda part: part)
    made = stepper(contrastive(dtype=torch.float16), precision="fp16")
    made(torch.arange(B)[None], 0)
    before = made.scaler.state_dict()
    made.prepare(compiled=True, graph=False, say=print)
    assert made.scaler.state_dict() == before


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("no C++ compiler\nand more", "no C++ compiler"),
        ("an exception in a subprocess:\n\nTraceback:\n  File: x\nRuntimeError: the pass failed\n\nSet A=1",
         "RuntimeError: the pass failed"),
        ("", ""),
    ],
)  # fmt: skip
def test_a_compiler_that_fails_is_named_and_passed_over(
    message: str, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> object:
        def fail(*_: object, **__: object) -> None:
            raise RuntimeError(message)

        return lambda part: fail

    made, eager = stepper(), stepper()
    monkeypatch.setattr(torch, "compile", broken)
    lines, say = said()
    assert str(made.prepare(compiled=True, graph=True, say=say)) == "eager"
    assert lines == [f'"compiled" fails here (RuntimeError: {cause}): going on with "eager".']
    index = torch.arange(B)[None]
    assert torch.equal(made(index, 0), eager(index, 0))
    assert torch.equal(weights(made), weights(eager))


@pytest.mark.parametrize("broken", ["criterion", "views", "embed and attack"])
@pytest.mark.parametrize("late", [False, True], ids=["forward", "backward"])
def test_a_part_that_fails_to_compile_stays_plain_alone(
    broken: str, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it fails, in its own call or in that of another, does not tell which part it is."""
    made, eager = stepper(), stepper()
    bad, compiled = [made.objective.parts[name] for name in broken.split(" and ")], []

    def compiler(part: Any) -> Any:
        compiled.append(part)
        if part in bad and not late:
            raise RuntimeError("no such kernel")
        return part

    update = made._update

    def failing() -> Tensor:
        if any(part in bad for part in compiled):
            raise RuntimeError("no such kernel")
        return update()

    def fresh(**_: object) -> Any:
        compiled.clear()
        return compiler

    monkeypatch.setattr(torch, "compile", fresh)
    monkeypatch.setattr(made, "_update", failing)
    lines, say = said()
    assert str(made.prepare(compiled=True, graph=False, say=say)) == f"compiled without {broken}"
    assert lines == [
        f'"compiled" fails here (RuntimeError: no such kernel): going on with "compiled without {broken}".'
    ]
    assert {id(part) for part in (*compiled, *bad)} == {id(p) for p in made.objective.parts.values()}
    assert not any(part in bad for part in compiled)
    index = torch.arange(B)[None]
    assert torch.equal(made(index, 0), eager(index, 0))
    assert torch.equal(weights(made), weights(eager))


def test_the_compilers_advice_to_round_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def advising(*_: object, **__: object) -> object:
        def advise(part: Any) -> Any:
            def call(*args: object) -> object:
                warnings.warn("TensorFloat32 tensor cores … available but not enabled", stacklevel=1)
                warnings.warn("something else", stacklevel=1)
                return part(*args)

            return call

        return advise

    made = stepper()
    monkeypatch.setattr(torch, "compile", advising)
    with pytest.warns(UserWarning, match="something else") as told:
        made.prepare(compiled=True, graph=False, say=print)
    assert {str(warning.message) for warning in told} == {"something else"}


def test_a_torch_without_compiler_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(**_: object) -> object:
        raise RuntimeError("torch.compile is not supported on this platform")

    monkeypatch.setattr(torch, "compile", missing)
    lines, say = said()
    assert str(stepper().prepare(compiled=True, graph=False, say=say)) == "eager"
    assert "not supported on this platform" in lines[0]


def test_one_of_several_ranks_takes_no_way_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others' trial updates would wait for messages that this one never sends."""

    def missing(**_: object) -> object:
        raise RuntimeError("no compiler on this machine")

    made = stepper()
    assert str(made.prepare(compiled=False, graph=False, say=pytest.fail, alone=False)) == "eager"
    monkeypatch.setattr(torch, "compile", missing)
    with pytest.raises(InputError, match=r"no compiler on this machine.*--set train\.compile=false"):
        made.prepare(compiled=True, graph=False, say=pytest.fail, alone=False)


@pytest.mark.parametrize(
    ("compiled", "working", "taken"),
    [
        (True, {"compiled + CUDA graph", "compiled", "CUDA graph", "eager"}, "compiled + CUDA graph"),
        (True, {"compiled", "eager"}, "compiled"),  # what is compiled stays so where no graph can be captured
        (True, {"compiled without views + CUDA graph", "CUDA graph", "eager"},
         "compiled without views + CUDA graph"),
        (True, {"compiled without embed and attack + CUDA graph", "eager"},
         "compiled without embed and attack + CUDA graph"),
        (True, {"CUDA graph", "eager"}, "CUDA graph"),
        (True, {"eager"}, "eager"),
        (False, {"compiled + CUDA graph", "CUDA graph", "eager"}, "CUDA graph"),
        (False, {"compiled", "eager"}, "eager"),
    ],
)  # fmt: skip
def test_a_gpu_takes_the_fastest_way_that_works(
    compiled: bool, working: set[str], taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, tried = stepper(), []

    def attempt(way: StepMode) -> None:
        tried.append(str(way))
        if str(way) not in working:
            raise RuntimeError(f"no {way}")

    monkeypatch.setattr(made, "images", SimpleNamespace(is_cuda=True))
    monkeypatch.setattr(made, "_try", attempt)
    lines, say = said()
    way = made.prepare(compiled=compiled, graph=True, say=say)
    assert (str(way), tried[-1]) == (taken, taken)  # the last that was tried is the one that stays
    assert (way.compiled, way.captured) == (taken.split(" + ")[0] == "compiled", "CUDA graph" in taken)
    first = "compiled + CUDA graph" if compiled else "CUDA graph"
    message = f'"{first}" fails here (RuntimeError: no {first}): going on with "{taken}".'
    assert lines == ([] if taken == first else [message])


def test_eager_without_graph_needs_no_trial() -> None:
    made = stepper()
    lines, say = said()
    assert str(made.prepare(compiled=False, graph=True, say=say)) == "eager"
    assert not lines
    assert not made.optimizer.state


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError(),
    ],
)
def test_out_of_memory_says_which_setting_to_lower(error: Exception) -> None:
    with (
        pytest.raises(InputError, match=r"lower --batch-size .* --num-positives.*Nothing is lost"),
        memory_errors(),
    ):
        raise error


def test_out_of_memory_in_the_trial_is_no_reason_to_go_on_without_the_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    made = stepper()
    monkeypatch.setattr(made, "_update", full)
    monkeypatch.setattr(torch, "compile", lambda **_: lambda part: part)
    with pytest.raises(torch.OutOfMemoryError):
        made.prepare(compiled=True, graph=False, say=print)


def test_other_errors_pass_through() -> None:
    with pytest.raises(RuntimeError, match="shape"), memory_errors():
        raise RuntimeError("shape mismatch")
