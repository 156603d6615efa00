"""Multinomial logistic regression, all on the device: minibatch Adam and full-batch L-BFGS.

    θ* = argmin mean_i −log softmax(θᵀ x_i)_{y_i} + l2/2·‖θ‖²

Shapes: N samples, T test samples, B a batch, F features, C classes, K ≥ F + 1 columns: the features, a one
for the bias, and zeros up to a multiple of eight, which makes matrix products fast; they stay zero in θ.

A step of Adam on a probe is so small that launching kernels costs more than running them. So the gradient
is written out rather than left to autograd, samples are shuffled once per epoch rather than gathered batch by
batch, and on a GPU the whole epoch with its test accuracy is one CUDA graph.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from intnacl.training.cuda_graph import record


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Training and test data, columns padded, all on one device."""

    x: Tensor  # (N, K)
    y: Tensor  # (N,)
    test_x: Tensor  # (T, K)
    test_y: Tensor  # (T,)
    features: int
    classes: int


def pad_columns(x_NF: Tensor) -> Tensor:
    """Return (N, F) as (N, K): the features, a one, and zeros up to a multiple of eight."""
    n, f = x_NF.shape
    x_NK = x_NF.new_zeros(n, -(-(f + 1) // 8) * 8)
    x_NK[:, :f] = x_NF
    x_NK[:, f] = 1
    return x_NK


def adam(
    problem: Problem,
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    l2: float,
    seed: int,
    each_pass: Callable[[], None] = lambda: None,
) -> tuple[Tensor, list[int]]:
    """Return θ (K, C) by minibatch Adam, and the number of correct test samples after each epoch.

    The order of samples is drawn on the CPU, so one seed gives the same batches on any device. An epoch drops
    its last, smaller batch; the next shuffle brings those samples back.
    """
    generator = torch.Generator().manual_seed(seed)
    epoch = _Epoch(problem, min(batch_size, len(problem.x)), lr, l2, generator)
    on_gpu = problem.x.is_cuda
    correct = torch.zeros(epochs, dtype=torch.long, device=problem.x.device)
    with torch.no_grad(), torch.cuda.device(correct.device) if on_gpu else nullcontext():
        run = epoch.run
        if on_gpu:
            start_KC = epoch.theta_KC.clone()
            graph, _ = record(epoch.run, correct.device)
            epoch.reset(start_KC)  # the warm-up changed θ and Adam's state
            run = graph.replay
        for i in range(epochs):
            order = torch.randperm(len(problem.x), generator=generator, pin_memory=on_gpu)
            epoch.order.copy_(order[: len(epoch.order)], non_blocking=True)
            run()
            correct[i] = epoch.correct
            each_pass()
    return epoch.theta_KC, correct.tolist()


class _Epoch:
    """One epoch of Adam as a fixed list of kernels on fixed memory, as a CUDA graph requires."""

    def __init__(
        self, problem: Problem, batch: int, lr: float, l2: float, generator: torch.Generator
    ) -> None:
        x = problem.x
        self.problem, self.batch = problem, batch
        self.theta_KC = initial(problem, generator)
        self.grad_KC = torch.zeros_like(self.theta_KC)
        self.minus_one_B1 = x.new_full((batch, 1), -1)
        self.order = torch.zeros(len(x) // batch * batch, dtype=torch.long, device=x.device)
        self.correct = torch.zeros((), dtype=torch.long, device=x.device)
        # Adam's fused kernel gives a tensor one thread block per 65,536 numbers. Split into up to 32
        # pieces of at least 2,048 numbers, θ keeps many multiprocessors busy, still in a single launch.
        fused, numbers = x.is_cuda, self.theta_KC.numel()
        pieces = torch.split(self.theta_KC.view(-1), 2048 * -(-numbers // (32 * 2048)) if fused else numbers)
        for piece, grad in zip(pieces, torch.split(self.grad_KC.view(-1), len(pieces[0])), strict=True):
            piece.grad = grad
        self.optimizer = torch.optim.Adam(pieces, lr=lr, weight_decay=l2, fused=fused, capturable=fused)

    def run(self) -> None:
        """Shuffle by `order`, take every step, count the right test samples."""
        x_NK = self.problem.x.index_select(0, self.order)
        y_N1 = self.problem.y.index_select(0, self.order)[:, None]
        for start in range(0, len(x_NK), self.batch):
            rows = slice(start, start + self.batch)
            gradient_(self.grad_KC, self.theta_KC, x_NK[rows], y_N1[rows], self.minus_one_B1)
            self.optimizer.step()
        self.correct.copy_(count_correct(self.theta_KC, self.problem.test_x, self.problem.test_y))

    def reset(self, theta_KC: Tensor) -> None:
        """Go back to this θ with a fresh optimiser, in the same memory."""
        self.theta_KC.copy_(theta_KC)
        for state in self.optimizer.state.values():
            for tensor in state.values():
                tensor.zero_()


def gradient_(grad_KC: Tensor, theta_KC: Tensor, x_BK: Tensor, y_B1: Tensor, minus_one_B1: Tensor) -> None:
    """Write ∇_θ of the mean cross-entropy, Xᵀ(softmax(Xθ) − onehot(y))/B, to `grad_KC`: four kernels."""
    p_BC = torch.softmax(x_BK @ theta_KC, dim=1)
    p_BC.scatter_add_(1, y_B1, minus_one_B1)
    grad_KC.addmm_(x_BK.T, p_BC, beta=0, alpha=1 / len(x_BK))


def lbfgs(
    problem: Problem, *, max_iter: int, l2: float, each_pass: Callable[[], None] = lambda: None
) -> Tensor:
    """Return θ (K, C) by full-batch L-BFGS with strong Wolfe line search. The bias is not penalised.

    The problem is convex, so it may start at zero; once the gradient is small the iterations end early.
    """
    theta_KC = problem.x.new_zeros(problem.x.shape[1], problem.classes).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [theta_KC],
        max_iter=max_iter,
        history_size=20,
        tolerance_grad=1e-7,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def _closure() -> Tensor:
        loss = functional.cross_entropy(problem.x @ theta_KC, problem.y)
        loss = loss + l2 / 2 * theta_KC[: problem.features].square().sum()
        (theta_KC.grad,) = torch.autograd.grad(loss, theta_KC)
        each_pass()
        return loss

    with torch.enable_grad():
        optimizer.step(_closure)  # type: ignore[no-untyped-call]
    return theta_KC.detach()


def initial(problem: Problem, generator: torch.Generator) -> Tensor:
    """Return θ initialised as in `nn.Linear`, uniform in ±1/√F: (K, C) on the problem's device."""
    bound = problem.features**-0.5
    theta_KC = torch.zeros(problem.x.shape[1], problem.classes)
    theta_KC[: problem.features + 1].uniform_(-bound, bound, generator=generator)
    return theta_KC.to(problem.x)


def count_correct(theta_KC: Tensor, x_NK: Tensor, y_N: Tensor) -> Tensor:
    """Return the number of rows that are classified right, as a 0-dimensional tensor on the device."""
    return ((x_NK @ theta_KC).argmax(dim=1) == y_N).sum()
