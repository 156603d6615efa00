"""One update of the weights, as fast as the machine allows: compiled, and on a GPU one captured CUDA graph.

Shapes: k batches an update, R = h + B rows of a rank's batch with its halo, T terms of the loss.
"""

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from intnacl.data.batches import rank_rows
from intnacl.data.streamed import Images
from intnacl.errors import InputError
from intnacl.training.average import Average
from intnacl.training.checkpoint import StepState
from intnacl.training.cuda_graph import record
from intnacl.training.objectives import Objective
from intnacl.training.optimizers import build_optimizer
from intnacl.training.ranks import Ranks, wrap_ddp
from intnacl.training.settings import DTYPES, TrainConfig
from intnacl.training.source import open_source
from intnacl.training.workers import Crops

WARM_UPS = 3  # before a capture: libraries choose their algorithms, optimisers make their state


class TrainStep:
    """Runs updates of an objective on resident or streamed images; nothing here waits for the GPU.

    Creating one puts the objective on the device, builds its optimiser and wraps its model for DDP.
    `rows` are the rows of each global batch that this rank trains on, the halo first; `names` are the names
    of the loss's terms, which are known after the first update.
    """

    def __init__(
        self,
        objective: Objective,
        images: Images,
        labels: Tensor | None,
        config: TrainConfig,
        here: Ranks,
        *,
        stream: bool = False,
    ) -> None:
        device = here.device
        self.objective, self.config, self.here = objective, config.on(device), here
        self.rows = rank_rows(here.rank, here.world, config.batch_size, halo=objective.halo, device=device)
        objective.to(device).train()
        if self.config.precision == "fp64":
            objective.double()
        objective.to(memory_format=torch.channels_last)
        self.optimizer = build_optimizer(objective.model, self.config, device)
        if here.world > 1:
            objective.distribute(lambda module: wrap_ddp(module, device))
        self.labels = labels.to(device) if labels is not None else None
        self.source = open_source(
            images,
            self.rows,
            device,
            stream=stream,
            accumulate=config.accumulate,
            workers=config.workers,
            crops=Crops(objective.augment, objective.augmented_views, int(objective.seed)),
        )
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.config.precision == "fp16")
        self.average = Average(objective.model, config.ema) if config.ema else None
        self.names: list[str] = []
        # A captured graph reads these two and writes the terms, always in the same memory.
        self._index_kR = torch.zeros(config.accumulate, len(self.rows), dtype=torch.int64, device=device)
        self._clock = torch.zeros((), dtype=torch.int64, device=device)
        self._captured: tuple[torch.cuda.CUDAGraph, Tensor] | None = None

    def __call__(self, index_kR: Tensor, first_batch: int) -> Tensor:
        """Update on the images `index_kR`, whose first row is batch `first_batch` of the run.

        Returns the loss's terms (T,), which the next call may overwrite.
        """
        self._index_kR.copy_(index_kR)
        self._clock.fill_(first_batch)
        self.source.fill()
        if self._captured is None:
            terms_T = self._update()
        else:
            graph, terms_T = self._captured
            graph.replay()
        self.source.look_ahead()
        return terms_T

    def named(self, terms_T: Tensor) -> dict[str, float]:
        """Return terms as numbers by name."""
        return dict(zip(self.names, terms_T.tolist(), strict=True))

    def state(self) -> StepState:
        """Return the state of optimiser, gradient scaler, online probe and average for a checkpoint."""
        kept: StepState = {"state": self.optimizer.state_dict()["state"], "scaler": self.scaler.state_dict()}
        if self.objective.online_probe is not None:
            kept["online_probe"] = self.objective.online_probe.state_dict()
        if self.average is not None:
            kept |= {"average": self.average.values, "averaged": self.average.updates}
        return kept

    def load_state(self, state: StepState) -> None:
        """Load what `state` returned."""
        # Parameter groups are this machine's: the checkpoint may have another device's options.
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state["state"], "param_groups": groups})
        self.scaler.load_state_dict(state["scaler"])
        if self.objective.online_probe is not None and "online_probe" in state:
            self.objective.online_probe.load_state_dict(state["online_probe"])
        if self.average is not None:
            self.average.load(state["average"], state["averaged"])

    def averaged(self) -> AbstractContextManager[None]:
        """Put the averaged weights into the model inside the block, if the run averages them."""
        return nullcontext() if self.average is None else self.average.in_model()

    def prepare(self, say: Callable[[str], None]) -> "StepMode":
        """Compile and capture the update as far as the settings ask for and the machine allows."""
        # Shapes never change, so the search for the fastest convolutions is worth its time.
        torch.backends.cudnn.benchmark = True
        alone = self.here.world == 1
        captured = bool(self.config.cuda_graph) and alone and self.here.device.type == "cuda"
        modes = step_modes(
            self.objective.compilable if self.config.compile else (),
            captured=captured and self.config.precision != "fp16",
        )
        return first_that_works(modes, self._set_up, say, alone=alone)

    def _set_up(self, mode: "StepMode") -> None:
        """Compile the objective's parts and try an update, which is undone."""
        self._captured = None
        compiler = None
        if mode.compiled:
            torch.compiler.reset()  # otherwise torch compiles nothing from a process's ninth run on
            compiler = torch.compile(dynamic=False)
        self.objective.compile_parts(compiler, eager=mode.eager)
        if not mode.compiled and not mode.captured:
            return
        with _rolled_back(self), warnings.catch_warnings():
            # The loss's products are exact on purpose; the compiler recommends TF32.
            warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")
            if mode.captured:
                self._captured = record(self._update, self.here.device, warm_ups=WARM_UPS)
            else:
                self._update()

    def _update(self) -> Tensor:
        k = len(self._index_kR)
        precision, device = self.config.precision, self.here.device.type
        means_T = None
        for i in range(k):
            index_R = self._index_kR[i]
            images = self.source.read(i, index_R)
            labels = None if self.labels is None else self.labels[index_R]
            with self.objective.gradients_reduced(i == k - 1):
                with torch.autocast(device, DTYPES[precision], enabled=precision in ("bf16", "fp16")):
                    terms = self.objective(images, labels, self.rows, self._clock + i)
                self.scaler.scale(terms["loss"] * (1 / k)).backward()
            self.objective.after_backward()
            self.names = list(terms)
            terms_T = torch.stack([value.detach().float() * (1 / k) for value in terms.values()])
            means_T = terms_T if means_T is None else means_T + terms_T
        if self.config.clip:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.objective.model.parameters(), self.config.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.average is not None:
            self.average.update()
        self.optimizer.zero_grad(set_to_none=True)
        assert means_T is not None
        return means_T


# ---- modes, from the fastest to plain torch ----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StepMode:
    """The way of running updates."""

    compiled: bool = False
    """Parts of the objective are compiled: all of them but `eager`."""
    eager: str | None = None
    """The part that is not compiled although the others are, since the compiler fails on it."""
    captured: bool = False
    """An update is one CUDA graph."""

    @property
    def fully_compiled(self) -> bool:
        """True if no part is left out."""
        return self.compiled and self.eager is None

    def __str__(self) -> str:
        names = [f"compiled without {self.eager}" if self.eager else "compiled"] if self.compiled else []
        return " + ".join(names + ["CUDA graph"] * self.captured) or "eager"


def step_modes(compilable: Sequence[str], *, captured: bool) -> list[StepMode]:
    """List the modes to try, from the fastest to plain torch, which always works.

    After the fastest, they leave out the graph, then each single part, then the compiler.
    """
    modes = [StepMode(captured=captured), StepMode()]
    if compilable:
        partly = [StepMode(compiled=True, eager=part, captured=captured) for part in compilable]
        modes = [StepMode(compiled=True, captured=captured), StepMode(compiled=True), *partly, *modes]
    return list(dict.fromkeys(modes))  # without a graph some are equal


def first_that_works(
    modes: Sequence[StepMode],
    set_up: Callable[[StepMode], None],
    say: Callable[[str], None],
    *,
    alone: bool = True,
) -> StepMode:
    """Set up the first mode that works; if it is not the first in the list, say why that one fails.

    With several ranks (not `alone`) only the first mode is tried, since all must take the same one: another
    trial on some of them would exchange messages with the updates of others.
    """
    reason = None
    for mode in modes:
        try:
            set_up(mode)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            # Take the line that names the error, since compilers quote whole tracebacks. Only text is kept:
            # the error itself would keep tensors alive.
            lines = str(error).splitlines() or [""]
            named = [line for line in lines if re.match(r"[\w.]*(Error|Exception): .", line)]
            cause = (named[-1] if named else lines[0])[:200]
            reason = reason or f"{type(error).__name__}: {cause}"
        else:
            if reason:
                say(f'"{modes[0]}" fails here ({reason}): going on with "{mode}".')
            return mode
        if not alone:
            break
    raise InputError(
        f'"{modes[0]}" fails on this rank ({reason}), and all ranks must update in the same way: '
        "--set train.compile=false."
    )


@contextmanager
def _rolled_back(step: TrainStep) -> Iterator[None]:
    """Undo the updates inside the block: weights and their average, statistics, probe, optimiser, scaler.

    Values are restored in place, since a captured graph refers to tensors by address. State that the
    optimiser created during the trial is set to zero, which is the initial state of all our optimisers.
    """
    objective, optimizer, scaler = step.objective, step.optimizer, step.scaler
    tensors = [*objective.parameters(), *objective.buffers()]
    if step.average is not None:
        tensors += [*step.average.values.values(), step.average.updates]
    saved = [tensor.detach().clone() for tensor in tensors]
    scale = scaler.state_dict()
    before = {
        id(t): t.clone() for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t)
    }
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, saved, strict=True):
                tensor.copy_(value)
            for state in optimizer.state.values():
                for tensor in filter(torch.is_tensor, state.values()):
                    if id(tensor) in before:
                        tensor.copy_(before[id(tensor)])
                    else:
                        tensor.zero_()
        scaler.load_state_dict(scale)
        optimizer.zero_grad(set_to_none=True)


# ---- memory ------------------------------------------------------------------------------------------------


@contextmanager
def memory_errors() -> Iterator[None]:
    """Turn a lack of memory, on the GPU or the machine, into an InputError with the remedy."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise InputError(
                "out of memory: lower --batch-size (train.accumulate makes up for it), --num-positives, or "
                "take train.precision=bf16. The last checkpoint is intact."
            ) from error
        raise


def is_out_of_memory(error: Exception) -> bool:
    """True if memory ran out; torch has a separate exception only for its GPU allocator."""
    messages = (
        "can't allocate memory",
        "Storage size calculation overflowed",
        "CUDA error: out of memory",
        "[CUDA]: out of memory",
        "CUBLAS_STATUS_ALLOC_FAILED",
    )
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or any(message in str(error) for message in messages)
