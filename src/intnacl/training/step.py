"""One update of the weights, as fast as the machine allows: compiled, and on a GPU one captured CUDA graph.

Shapes: k batches an update, R = h + B rows of a rank's batch with its halo, T terms of the loss.
"""

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from intnacl.errors import InputError
from intnacl.training.cuda_graph import record
from intnacl.training.objectives import Objective

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}
WARM_UPS = 3  # before a capture: libraries choose their algorithms, optimisers make their state


@dataclass(frozen=True, kw_only=True)
class StepMode:
    """How updates are run."""

    plain: tuple[str, ...] | None
    """Names of the objective's parts that are not compiled; None: no part is."""
    captured: bool
    """Whether an update is one CUDA graph."""

    @property
    def compiled(self) -> bool:
        """Whether every part is."""
        return self.plain == ()

    def __str__(self) -> str:
        names = ["CUDA graph"] if self.captured else []
        if self.plain is not None:
            names.insert(0, " without ".join(filter(None, ["compiled", " and ".join(self.plain)])))
        return " + ".join(names) or "eager"


class Stepper:
    """Runs updates on data that lives on the device; nothing here waits for the GPU."""

    def __init__(
        self,
        objective: Objective,
        optimizer: Optimizer,
        images: Tensor,
        labels: Tensor | None,
        rows: Tensor,
        *,
        batches: int,
        precision: str,
        clip: float | None,
    ) -> None:
        self.objective, self.optimizer = objective, optimizer
        self.images, self.labels, self.rows = images, labels, rows
        self.precision, self.clip = precision, clip
        self.names: list[str] = []
        device = images.device
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        self._index_kR = torch.zeros(batches, len(rows), dtype=torch.int64, device=device)
        self._clock = torch.zeros((), dtype=torch.int64, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._captured_T: Tensor | None = None

    def __call__(self, index_kR: Tensor, first_batch: int) -> Tensor:
        """One update on the images `index_kR`, batch `first_batch` of the run first: the terms (T,)."""
        self._index_kR.copy_(index_kR)
        self._clock.fill_(first_batch)
        if self._graph is None:
            return self._update()
        self._graph.replay()
        assert self._captured_T is not None
        return self._captured_T

    def prepare(
        self, *, compiled: bool, graph: bool, say: Callable[[str], None], alone: bool = True
    ) -> StepMode:
        """Take the fastest way that works; if it is not the first, say why that one is passed over.

        Of several ranks (not `alone`) none may take another way than the rest: a trial on some of them alone
        would pair its messages with others' updates.
        """
        # Shapes never change, so that the fastest convolutions are worth finding.
        torch.backends.cudnn.benchmark = True
        first, *others = self._ways(compiled, graph and self.images.is_cuda and self.precision != "fp16")
        reason = self._failure(first)
        if reason is None:
            return first
        if not alone:
            raise InputError(
                f'"{first}" fails on this rank ({reason}), and all ranks must update in the same way: '
                "--set train.compile=false."
            )
        way = next(way for way in others if self._failure(way) is None)
        say(f'"{first}" fails here ({reason}): going on with "{way}".')
        return way

    def _ways(self, compiled: bool, graph: bool) -> list[StepMode]:
        """From the fastest to the one that needs no trial.

        If all parts can be compiled but not captured, the graph is at fault; else it may be one part alone.
        """
        ways = [StepMode(plain=None, captured=graph), StepMode(plain=None, captured=False)]
        if compiled:
            parts = [StepMode(plain=names, captured=graph) for names in self.objective.groups()]
            ways = [StepMode(plain=(), captured=graph), StepMode(plain=(), captured=False), *parts, *ways]
        return list(dict.fromkeys(ways))  # without a graph some are the same

    def _failure(self, way: StepMode) -> str | None:
        """Why a way does not work, None if it does. Words alone: an error would keep its tensors alive."""
        try:
            self._try(way)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return f"{type(error).__name__}: {_cause(error)}"
        return None

    def _try(self, way: StepMode) -> None:
        """Compile the parts and try an update, which is taken back."""
        self._graph = None
        compiler = None
        if way.plain is not None:
            torch.compiler.reset()  # from the process's ninth run on, torch would leave the parts as they are
            compiler = torch.compile(dynamic=False)
        self.objective.compile_parts(compiler, way.plain or ())
        if compiler is None and not way.captured:
            return
        with _kept(self.objective, self.optimizer, self.scaler), warnings.catch_warnings():
            # The loss's products are exact by intention; the compiler would have them in TF32.
            warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")
            if way.captured:
                self._graph, self._captured_T = record(self._update, self.images.device, warm_ups=WARM_UPS)
            else:
                self._update()

    def _update(self) -> Tensor:
        k = len(self._index_kR)
        totals = None
        for i in range(k):
            terms_T = self._backward(self._index_kR[i], self._clock + i, 1 / k)
            totals = terms_T if totals is None else totals + terms_T
        if self.clip:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.objective.model.parameters(), self.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        assert totals is not None
        return totals

    def _backward(self, index_R: Tensor, clock: Tensor, share: float) -> Tensor:
        images = self.images[index_R]
        labels = None if self.labels is None else self.labels[index_R]
        half = self.precision in ("bf16", "fp16")
        with torch.autocast(images.device.type, DTYPES[self.precision], enabled=half):
            terms = self.objective(images, labels, self.rows, clock)
        self.scaler.scale(terms["loss"] * share).backward()
        self.names = list(terms)
        return torch.stack([value.detach().float() * share for value in terms.values()])


@contextmanager
def memory_errors() -> Iterator[None]:
    """Turn a lack of memory, the GPU's or the machine's, into a message that says what to do."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise InputError(
                "out of memory: lower --batch-size (train.accumulate makes up for it), --num-positives, or "
                "take train.precision=bf16. Nothing is lost: the last checkpoint is whole."
            ) from error
        raise


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out; torch's own exception is of what its allocator asked for on a GPU alone."""
    told = (
        "can't allocate memory", "Storage size calculation overflowed",
        "CUDA error: out of memory", "[CUDA]: out of memory", "CUBLAS_STATUS_ALLOC_FAILED",
    )  # fmt: skip
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or any(text in str(error) for text in told)


@contextmanager
def _kept(objective: Objective, optimizer: Optimizer, scaler: torch.amp.GradScaler) -> Iterator[None]:
    """Trial updates inside the block leave weights, statistics, scale and optimiser as they were.

    Values are written back in place, since a captured graph knows tensors by their address. State that the
    optimiser made during the trial is zero, which is how every one of ours begins.
    """
    tensors = [*objective.model.parameters(), *objective.model.buffers()]
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


def _cause(error: Exception) -> str:
    """The first line of a message, or the last that names an error: compilers quote whole tracebacks."""
    lines = str(error).splitlines() or [""]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception): .", line)]
    return (named[-1] if named else lines[0])[:200]
