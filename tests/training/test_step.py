"""One update: accumulation, clipping, half precision, compilation and what is done where it fails."""

import copy
import functools
import warnings
from typing import Any

import pytest
import torch
from pieces import contrastive, labelled_images, train_step
from torch import Tensor

from intnacl.errors import InputError
from intnacl.evaluation.precision import exact_float32
from intnacl.training.ranks import Ranks
from intnacl.training.settings import DTYPES, TrainConfig
from intnacl.training.step import StepMode, TrainStep, first_that_works, memory_errors, step_modes

B = 8


def weights(made: TrainStep) -> Tensor:
    return torch.cat([p.detach().flatten().double() for p in made.objective.model.parameters()])


def loss(made: TrainStep, index_B: Tensor, step: int) -> Tensor:
    return made.objective(made.images[index_B], None, made.rows, torch.tensor(step))["loss"]


def gradient(made: TrainStep, index_B: Tensor, step: int) -> Tensor:
    """The gradient of one batch, by autograd alone."""
    grads = torch.autograd.grad(loss(made, index_B, step), list(made.objective.model.parameters()))
    return torch.cat([g.flatten().double() for g in grads])


@pytest.mark.parametrize("k", [1, 3])
def test_an_update_is_a_step_down_the_mean_gradient_of_its_batches(k: int) -> None:
    made, same = train_step(accumulate=k, precision="fp64"), train_step(precision="fp64")
    index_kB = torch.randperm(64)[: k * B].view(k, B)
    before = weights(made)
    gradients = torch.stack([gradient(same, index_B, 5 + i) for i, index_B in enumerate(index_kB)])
    terms = made(index_kB, 5)
    torch.testing.assert_close(weights(made), before - 0.1 * gradients.mean(0), rtol=1e-6, atol=1e-9)
    expected = [loss(same, index_B, 5 + i).item() for i, index_B in enumerate(index_kB)]
    named = made.named(terms)
    assert list(named) == ["nacl", "robust", "loss"]
    assert named["loss"] == pytest.approx(sum(expected) / k, rel=1e-5)
    assert named["loss"] == pytest.approx(named["nacl"] + named["robust"])
    assert all(p.grad is None for p in made.objective.model.parameters())


def test_clipping_bounds_the_norm_of_the_gradient() -> None:
    made, same = train_step(clip=0.5, precision="fp64"), train_step(precision="fp64")
    before, grad = weights(made), gradient(same, torch.arange(B), 0)
    assert grad.norm() > 0.5
    made(torch.arange(B)[None], 0)
    torch.testing.assert_close(weights(made), before - 0.1 * 0.5 * grad / grad.norm(), rtol=1e-4, atol=1e-7)
    free, bound = train_step(clip=1e9), train_step()
    free(torch.arange(B)[None], 0), bound(torch.arange(B)[None], 0)
    torch.testing.assert_close(weights(free), weights(bound))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_runs_on_a_cpu_and_stays_near(precision: str) -> None:
    dtype = DTYPES[precision]
    half, full = train_step(contrastive(dtype=dtype), precision=precision), train_step()
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
    scaled = train_step(contrastive(dtype=torch.float16), precision="fp16", clip=0.5)
    before = weights(scaled)
    scaled(torch.arange(B)[None], 0)
    moved = (weights(scaled) - before).norm().item()
    assert moved == pytest.approx(0.1 * 0.5, rel=1e-2) or moved == 0  # a first scale too large skips the step


def test_images_that_do_not_fit_on_the_device_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    to = Tensor.to

    def no_room(tensor: Tensor, *given: Any, **named: Any) -> Tensor:
        if tensor.dtype == torch.uint8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 200.00 GiB")
        return to(tensor, *given, **named)

    images, here = torch.zeros(4096, 3, 96, 96, dtype=torch.uint8), Ranks(0, 1, torch.device("cpu"))
    monkeypatch.setattr(Tensor, "to", no_room)
    with pytest.raises(InputError, match=r"the 4,096 images take 0\.1 GiB on cpu.*smaller ones"):
        TrainStep(contrastive(), images, None, TrainConfig(), here)


# ---- modes -----------------------------------------------------------------------------------------------


def after_three_updates(made: TrainStep) -> tuple[Tensor, Tensor]:
    """The last terms, and the weights."""
    terms = [made(torch.arange(B)[None], step).clone() for step in range(1, 4)]
    return torch.stack(terms), weights(made)


def same_part(**_: object) -> Any:
    """In the place of `torch.compile`."""
    return lambda part: part


@pytest.mark.filterwarnings("default")  # the compiler has its own
@pytest.mark.parametrize("preset", ["simclr", pytest.param("intnacl", marks=pytest.mark.slow)])
def test_eager_and_compiled_updates_agree(preset: str) -> None:
    """In float64, where nothing but a wrong derivative makes a difference.

    The compiled backward pass recomputes parts of the forward pass when batch norm's buffers have moved.
    """
    eager, compiled = (
        train_step(contrastive(preset, dtype=torch.float64), precision="fp64", lr=1e-2, compile=on)
        for on in (False, True)
    )
    assert str(compiled.prepare(pytest.fail)) == "compiled"
    for one, other in zip(after_three_updates(eager), after_three_updates(compiled), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("default")  # the compiler has its own
def test_later_runs_of_a_process_are_compiled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch compiles a function so many times for other settings (eight, here one), then no more."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    limits = {"cache_size_limit": 1, "fail_on_cache_limit_hit": True}
    with torch._dynamo.config.patch(limits):
        for temperature in (0.2, 0.5):
            made = train_step(contrastive("simclr", loss={"temperature": temperature}), compile=True)
            assert str(made.prepare(pytest.fail)) == "compiled"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("default")  # the compiler has its own
@pytest.mark.parametrize("number", range(max(1, min(2, torch.cuda.device_count()))))
@pytest.mark.parametrize(("preset", "tolerance", "turned"), [("simclr", 1e-4, 0.1), ("intnacl", 5e-3, 0.4)])
def test_the_gpus_mode_is_the_eager_one(preset: str, tolerance: float, turned: float, number: int) -> None:
    """Kernels of our own, compiled parts and one graph, against plain torch, both in float32.

    At the rate of training, six steps of Adam turn a rounding of 1e-7 into 1e-2 of the loss, in eager torch
    against itself; so the rate is small here, and the weights must have moved the same way. An adversarial
    view is a sign, which rounding may turn. Where there is a second GPU, it does the same while the first is
    the current one.
    """
    size, here = 64, Ranks(0, 1, torch.device("cuda", number))
    losses, moves, statistics = [], [], []
    for fast in (False, True):
        config = TrainConfig(lr=3e-6, batch_size=size, precision="fp32", compile=fast, cuda_graph=fast)
        images = labelled_images(4 * size)[0]
        made = TrainStep(contrastive(preset, name="resnet18"), images, None, config, here)
        before = weights(made)
        with exact_float32():
            mode = made.prepare(pytest.fail)
            terms = [made(made.rows[None] + size * (step % 4), step).clone() for step in range(6)]
        assert str(mode) == ("compiled + CUDA graph" if fast else "eager")
        losses.append(torch.stack(terms))
        moves.append(weights(made) - before)
        statistics.append(torch.cat([b.flatten().double() for b in made.objective.model.buffers()]))
    torch.testing.assert_close(*losses, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(*statistics, rtol=tolerance, atol=tolerance)
    assert (moves[0] - moves[1]).norm() < turned * moves[0].norm()


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "fresh"])
@pytest.mark.parametrize(
    "settings",
    [{"optimizer": name, "lr": 1e-3, "momentum": 0.9} for name in ("adam", "adamw", "lars")]
    + [{}, {"precision": "fp16"}],
    ids=["adam", "adamw", "lars", "sgd", "sgd, fp16"],
)
def test_the_trial_leaves_no_trace(
    settings: dict[str, Any], begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", same_part)
    eager, tried = (
        train_step(contrastive(dtype=DTYPES[settings.get("precision", "fp32")]), compile=True, **settings)
        for _ in range(2)
    )
    for made in (eager, tried) if begun else ():
        made(torch.arange(B)[None], 0)
    before = {name: t.clone() for name, t in tried.objective.model.state_dict().items()}
    state = copy.deepcopy(tried.state())
    assert str(tried.prepare(pytest.fail)) == "compiled"
    after = tried.objective.model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert tried.state()["scaler"] == state["scaler"]
    for key, values in state["state"].items():
        now = tried.state()["state"][key]
        assert all(torch.equal(now[name], values[name]) for name in values if values[name] is not None)
    assert torch.equal(after_three_updates(eager)[1], after_three_updates(tried)[1])


@pytest.mark.parametrize(
    ("message", "cause", "early"),
    [
        ("no C++ compiler\nand more", "no C++ compiler", False),
        ("an exception in a subprocess:\n\nTraceback:\n  File: x\nRuntimeError: the pass failed\n\nSet A=1",
         "RuntimeError: the pass failed", False),
        ("", "", False),
        ("torch.compile is not supported on this platform", "torch.compile is not supported on this platform",
         True),
    ],
    ids=["when called", "of a subprocess", "without words", "no compiler"],
)  # fmt: skip
def test_a_compiler_that_fails_is_named_and_passed_over(
    message: str, cause: str, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(message)

    made, eager, lines = train_step(compile=True, cuda_graph=True), train_step(), []
    monkeypatch.setattr(torch, "compile", fail if early else lambda **_: lambda part: fail)
    assert str(made.prepare(lines.append)) == "eager"
    assert lines == [f'"compiled" fails here (RuntimeError: {cause}): going on with "eager".']
    assert torch.equal(after_three_updates(made)[1], after_three_updates(eager)[1])


@pytest.mark.parametrize("broken", ["criterion", "views", "model"])
@pytest.mark.parametrize("late", [False, True], ids=["forward", "backward"])
def test_a_part_that_fails_to_compile_stays_eager_alone(
    broken: str, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it fails, in its own call or in that of another, does not tell which part it is."""
    made, eager = train_step(compile=True), train_step()
    parts = vars(made.objective.parts)
    bad = [parts[name] for name in (("embed", "attack") if broken == "model" else (broken,))]
    compiled: list[Any] = []
    lines: list[str] = []

    def compiler(part: Any) -> Any:
        compiled.append(part)
        if part in bad and not late:
            raise RuntimeError("no such kernel")
        return part

    def fail_later(*_: object) -> None:
        if any(part in bad for part in compiled):
            raise RuntimeError("no such kernel")

    made.objective.register_forward_hook(fail_later)
    monkeypatch.setattr(torch, "compile", lambda **_: (compiled.clear(), compiler)[1])
    assert str(made.prepare(lines.append)) == f"compiled without {broken}"
    assert lines == [
        f'"compiled" fails here (RuntimeError: no such kernel): going on with "compiled without {broken}".'
    ]
    assert {id(part) for part in (*compiled, *bad)} == {id(part) for part in parts.values()}
    assert not any(part in bad for part in compiled)
    assert torch.equal(after_three_updates(made)[1], after_three_updates(eager)[1])


def test_the_compilers_advice_to_round_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def advise(part: Any) -> Any:
        def call(*args: object, **named: object) -> object:
            warnings.warn("TensorFloat32 tensor cores … available but not enabled", stacklevel=1)
            warnings.warn("something else", stacklevel=1)
            return part(*args, **named)

        return call

    monkeypatch.setattr(torch, "compile", lambda **_: advise)
    with pytest.warns(UserWarning, match="something else") as caught:
        train_step(compile=True).prepare(pytest.fail)
    assert {str(warning.message) for warning in caught} == {"something else"}


PARTS = ("criterion", "views", "model")


@pytest.mark.parametrize(
    ("parts", "working", "taken"),
    [
        (PARTS, {"compiled + CUDA graph", "compiled", "CUDA graph", "eager"}, "compiled + CUDA graph"),
        (PARTS, {"compiled", "eager"}, "compiled"),  # stays compiled where no graph can be captured
        (PARTS, {"compiled without views + CUDA graph", "CUDA graph", "eager"},
         "compiled without views + CUDA graph"),
        (PARTS, {"compiled without model + CUDA graph", "eager"}, "compiled without model + CUDA graph"),
        (PARTS, {"CUDA graph", "eager"}, "CUDA graph"),
        (PARTS, {"eager"}, "eager"),
        ((), {"compiled + CUDA graph", "CUDA graph", "eager"}, "CUDA graph"),
        ((), {"compiled", "eager"}, "eager"),
    ],
)  # fmt: skip
def test_a_gpu_takes_the_fastest_mode_that_works(
    parts: tuple[str, ...], working: set[str], taken: str
) -> None:
    tried: list[str] = []
    lines: list[str] = []

    def attempt(mode: StepMode) -> None:
        tried.append(str(mode))
        if str(mode) not in working:
            raise RuntimeError(f"no {mode}")

    mode = first_that_works(step_modes(parts, captured=True), attempt, lines.append)
    assert (str(mode), tried[-1]) == (taken, taken)  # the last that was tried is the one that stays
    assert mode.fully_compiled == (taken.split(" + ")[0] == "compiled")
    assert mode.captured == ("CUDA graph" in taken)
    first = "compiled + CUDA graph" if parts else "CUDA graph"
    message = f'"{first}" fails here (RuntimeError: no {first}): going on with "{taken}".'
    assert lines == ([] if taken == first else [message])


def no_compiler(_: StepMode) -> None:
    raise RuntimeError("no compiler on this machine")


def test_one_of_several_ranks_takes_no_mode_of_its_own() -> None:
    """The others' trial updates would wait for messages that this one never sends."""
    with pytest.raises(InputError, match=r"no compiler on this machine.*--set train\.compile=false"):
        first_that_works(step_modes(PARTS, captured=False), no_compiler, pytest.fail, alone=False)
    eager = step_modes((), captured=False)
    assert first_that_works(eager, lambda mode: None, pytest.fail, alone=False) == StepMode()


def test_without_a_compiler_and_a_gpu_nothing_is_tried() -> None:
    made = train_step(compile=False, cuda_graph=True)
    assert str(made.prepare(pytest.fail)) == "eager"
    assert not made.optimizer.state


# ---- memory ----------------------------------------------------------------------------------------------


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
def test_out_of_memory_says_which_setting_to_lower_and_is_not_the_compilers_fault(error: Exception) -> None:
    def full(_: StepMode) -> None:
        raise error

    with (
        pytest.raises(InputError, match=r"lower --batch-size .* --num-positives.*Nothing is lost"),
        memory_errors(),
    ):
        first_that_works(step_modes(PARTS, captured=True), full, pytest.fail)


def test_other_errors_pass_through() -> None:
    with pytest.raises(RuntimeError, match="shape"), memory_errors():
        raise RuntimeError("shape mismatch")
