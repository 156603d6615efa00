"""One update: accumulation, clipping, half precision, compilation and what is done where it fails."""

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pieces import ALONE, contrastive, labelled_images, train_step
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
    return made.objective(made.source.read(0, index_B), None, made.rows, torch.tensor(step))["loss"]


def gradient(made: TrainStep, index_B: Tensor, step: int) -> Tensor:
    """The gradient of one batch, by plain autograd."""
    grads = torch.autograd.grad(loss(made, index_B, step), list(made.objective.model.parameters()))
    return torch.cat([g.flatten().double() for g in grads])


@pytest.mark.parametrize("k", [1, 3])
def test_an_update_is_a_step_down_the_mean_gradient_of_its_batches(k):
    made, same = train_step(accumulate=k, precision="fp64"), train_step(precision="fp64")
    index_kB = torch.randperm(64)[: k * B].view(k, B)
    before = weights(made)
    gradients = torch.stack([gradient(same, index_B, 5 + i) for i, index_B in enumerate(index_kB)])
    terms = made(index_kB, 5)
    torch.testing.assert_close(weights(made), before - 0.1 * gradients.mean(0), rtol=1e-6, atol=1e-9)
    expected = [loss(same, index_B, 5 + i).item() for i, index_B in enumerate(index_kB)]
    named = made.named(terms)
    assert list(named) == ["nacl", "robust", "loss", "probe_train"]
    assert named["loss"] == pytest.approx(sum(expected) / k, rel=1e-5)
    assert named["loss"] == pytest.approx(named["nacl"] + named["robust"])
    assert all(p.grad is None for p in made.objective.model.parameters())


def test_clipping_bounds_the_norm_of_the_gradient():
    made, same = train_step(clip=0.5, precision="fp64"), train_step(precision="fp64")
    before, grad, index = weights(made), gradient(same, torch.arange(B), 0), torch.arange(B)[None]
    assert grad.norm() > 0.5
    made(index, 0)
    torch.testing.assert_close(weights(made), before - 0.1 * 0.5 * grad / grad.norm(), rtol=1e-4, atol=1e-7)
    free, bound = train_step(clip=1e9), train_step()
    free(index, 0), bound(index, 0)
    torch.testing.assert_close(weights(free), weights(bound))
    scaled = train_step(contrastive(dtype=torch.float16), precision="fp16", clip=0.5)
    before = weights(scaled)
    scaled(index, 0)
    moved = (weights(scaled) - before).norm().item()
    assert moved == pytest.approx(0.1 * 0.5, rel=1e-2) or moved == 0  # a first scale too large skips the step


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_runs_on_a_cpu_and_is_close(precision):
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


def test_images_that_do_not_fit_on_the_device_are_named():
    class Images(Tensor):
        def to(self, device: torch.device) -> Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 200.00 GiB")

    images = torch.zeros(4096, 3, 96, 96, dtype=torch.uint8).as_subclass(Images)
    with pytest.raises(InputError, match=r"the 4,096 images take 0\.1 GiB on cpu.*smaller ones"):
        TrainStep(contrastive(), images, None, TrainConfig(), ALONE)


def after_three_updates(made: TrainStep) -> tuple[Tensor, Tensor]:
    """The last terms, and the weights."""
    terms = [made(torch.arange(B)[None], step).clone() for step in range(1, 4)]
    return torch.stack(terms), weights(made)


@pytest.mark.filterwarnings("default")  # the compiler has its own
@pytest.mark.parametrize("preset", ["simclr", pytest.param("intnacl", marks=pytest.mark.slow)])
def test_eager_and_compiled_updates_agree(preset):
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
def test_later_runs_of_a_process_are_compiled_too(monkeypatch):
    """Torch recompiles a function only a limited number of times (eight, here one)."""
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
def test_the_gpus_mode_agrees_with_eager_updates(preset, tolerance, turned, number):
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


TRIED: dict[str, dict[str, Any]] = {
    **{name: {"optimizer": name, "lr": 1e-3, "momentum": 0.9} for name in ("adam", "adamw", "lars")},
    "sgd": {},
    "sgd, fp16": {"precision": "fp16"},
}


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "fresh"])
@pytest.mark.parametrize("settings", TRIED.values(), ids=TRIED)
def test_the_trial_update_is_undone_completely(settings, begun, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda **_: lambda part: part)
    dtype = DTYPES[settings.get("precision", "fp32")]
    eager, tried = (train_step(contrastive(dtype=dtype), compile=True, **settings) for _ in range(2))
    for made in (eager, tried) if begun else ():
        made(torch.arange(B)[None], 0)
    model, state = (copy.deepcopy(one) for one in (tried.objective.model.state_dict(), tried.state()))
    assert str(tried.prepare(pytest.fail)) == "compiled"
    now = tried.state()
    torch.testing.assert_close(tried.objective.model.state_dict(), model, rtol=0, atol=0)
    assert now["scaler"] == state["scaler"]
    torch.testing.assert_close(now["online_probe"], state["online_probe"], rtol=0, atol=0)
    found = {key: now["state"][key] for key in state["state"]}
    torch.testing.assert_close(found, dict(state["state"]), rtol=0, atol=0)
    assert torch.equal(after_three_updates(eager)[1], after_three_updates(tried)[1])


NAMED = {
    "no C++ compiler\nand more": "no C++ compiler",
    "in a subprocess:\n\nTraceback:\n  File: x\nRuntimeError: failed\n\nSet A=1": "RuntimeError: failed",
    "": "",
}


@pytest.mark.parametrize("early", [False, True], ids=["when called", "at once"])
@pytest.mark.parametrize(("message", "cause"), NAMED.items(), ids=["plain", "quoted", "without words"])
def test_a_failing_compiler_is_named_and_not_used(message, cause, early, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(message)

    made, eager, lines = train_step(compile=True, cuda_graph=True), train_step(), []
    monkeypatch.setattr(torch, "compile", fail if early else lambda **_: lambda part: fail)
    assert str(made.prepare(lines.append)) == "eager"
    assert lines == [f'"compiled" fails here (RuntimeError: {cause}): going on with "eager".']
    assert torch.equal(after_three_updates(made)[1], after_three_updates(eager)[1])


@pytest.mark.parametrize("broken", ["criterion", "views", "model"])
@pytest.mark.parametrize("late", [False, True], ids=["forward", "backward"])
def test_only_the_part_that_fails_to_compile_stays_eager(broken, late, monkeypatch):
    """The place of the failure, in its own call or another part's, does not show which part is at fault."""
    made, eager, lines, compiled = train_step(compile=True), train_step(), [], []
    parts = vars(made.objective.parts)
    bad = [parts[name] for name in (("embed", "attack") if broken == "model" else (broken,))]

    def fail(*_: object) -> None:
        if any(part in bad for part in compiled):
            raise RuntimeError("no such kernel")

    def compiler(part: Any) -> Any:
        compiled.append(part)
        return part if late else fail() or part

    made.objective.register_forward_hook(fail)
    monkeypatch.setattr(torch, "compile", lambda **_: (compiled.clear(), compiler)[1])
    mode = f"compiled without {broken}"
    assert str(made.prepare(lines.append)) == mode
    assert lines == [f'"compiled" fails here (RuntimeError: no such kernel): going on with "{mode}".']
    assert {id(part) for part in (*compiled, *bad)} == {id(part) for part in parts.values()}
    assert not any(part in bad for part in compiled)
    assert torch.equal(after_three_updates(made)[1], after_three_updates(eager)[1])


def test_the_compilers_recommendation_of_tf32_is_not_shown(monkeypatch):
    def advise(part: Any) -> Any:
        def call(*args: object, **named: object) -> object:
            for text in ("TensorFloat32 tensor cores … available but not enabled", "something else"):
                warnings.warn(text, stacklevel=1)
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
def test_a_gpu_uses_the_fastest_mode_that_works(parts, working, taken):
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


def raising(error: Exception) -> Callable[[StepMode], None]:
    def attempt(_: StepMode) -> None:
        raise error

    return attempt


def test_with_several_ranks_only_the_first_mode_is_tried():
    """The trial updates of other ranks would wait for messages that this one never sends."""
    compiled, eager = (step_modes(parts, captured=False) for parts in (PARTS, ()))
    attempt = raising(RuntimeError("no compiler on this machine"))
    with pytest.raises(InputError, match=r"no compiler on this machine.*--set train\.compile=false"):
        first_that_works(compiled, attempt, pytest.fail, alone=False)
    assert first_that_works(eager, lambda mode: None, pytest.fail, alone=False) == StepMode()


def test_without_a_compiler_and_a_gpu_nothing_is_tried():
    made = train_step(compile=False, cuda_graph=True)
    assert str(made.prepare(pytest.fail)) == "eager"
    assert not made.optimizer.state


FULL = [
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    MemoryError(),
]


@pytest.mark.parametrize("error", FULL, ids=repr)
def test_out_of_memory_says_which_setting_to_lower_and_is_not_the_compilers_fault(error):
    remedy = r"lower --batch-size .* --num-positives.*The last checkpoint is intact"
    with pytest.raises(InputError, match=remedy), memory_errors():
        first_that_works(step_modes(PARTS, captured=True), raising(error), pytest.fail)


def test_other_errors_pass_through():
    with pytest.raises(RuntimeError, match="shape"), memory_errors():
        raise RuntimeError("shape mismatch")
