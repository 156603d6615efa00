"""The written-out solvers against autograd, torch's optimiser and scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from intnacl.evaluation.logistic import Problem, adam, count_correct, gradient_, initial, lbfgs, pad_columns


def make_problem(n: int = 83, f: int = 11, c: int = 5, dtype: torch.dtype = torch.float64) -> Problem:
    x, y = torch.randn(n, f, dtype=dtype), torch.randint(c, (n,))
    test, test_y = torch.randn(40, f, dtype=dtype), torch.randint(c, (40,))
    return Problem(x=pad_columns(x), y=y, test_x=pad_columns(test), test_y=test_y, features=f, classes=c)


def torch_adam(
    problem: Problem, *, epochs: int, batch_size: int, lr: float, l2: float, seed: int
) -> nn.Linear:
    """The same training as anyone would write it: nn.Linear, CrossEntropyLoss, torch.optim.Adam."""
    generator = torch.Generator().manual_seed(seed)
    theta = initial(problem, generator)
    f = problem.features
    layer = nn.Linear(f, problem.classes, dtype=torch.float64)
    layer.load_state_dict({"weight": theta[:f].T, "bias": theta[f]})
    optimizer = torch.optim.Adam(layer.parameters(), lr=lr, weight_decay=l2)
    for _ in range(epochs):
        order = torch.randperm(len(problem.x), generator=generator)
        for batch in order.split(batch_size):
            if len(batch) == batch_size:
                optimizer.zero_grad()
                nn.CrossEntropyLoss()(layer(problem.x[batch, :f]), problem.y[batch]).backward()
                optimizer.step()
    return layer


def parts(theta_KC: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    return theta_KC[: problem.features].T, theta_KC[problem.features]


@pytest.mark.parametrize("l2", [0.0, 0.1])
@pytest.mark.parametrize("epochs", [1, 2, 7])
def test_adam_is_torchs_training(epochs, l2):
    problem = make_problem()
    settings = {"epochs": epochs, "batch_size": 16, "lr": 0.01, "l2": l2, "seed": 3}
    weight, bias = parts(adam(problem, **settings)[0], problem)
    layer = torch_adam(problem, **settings)
    torch.testing.assert_close(weight, layer.weight.data, rtol=0, atol=1e-10)
    torch.testing.assert_close(bias, layer.bias.data, rtol=0, atol=1e-10)


@pytest.mark.parametrize("steps", range(1, 12))
def test_each_step_is_torchs_step(steps):
    """83 samples in batches of 83, or more: one step an epoch."""
    problem = make_problem()
    settings = {"epochs": steps, "lr": 0.05, "l2": 0.0, "seed": 0}
    theta, _ = adam(problem, batch_size=83, **settings)
    expected = torch_adam(problem, batch_size=83, **settings).weight.data
    torch.testing.assert_close(parts(theta, problem)[0], expected, rtol=0, atol=1e-10)
    assert torch.equal(adam(problem, batch_size=1000, **settings)[0], theta)


def test_gradient_is_autograds():
    problem = make_problem()
    theta = initial(problem, torch.Generator().manual_seed(0)).requires_grad_()
    nn.functional.cross_entropy(problem.x @ theta, problem.y).backward()
    ours = torch.full_like(theta, torch.nan)  # whatever was there before must not matter
    with torch.no_grad():
        gradient_(ours, theta, problem.x, problem.y[:, None], -torch.ones(83, 1, dtype=torch.float64))
    torch.testing.assert_close(ours, theta.grad, rtol=0, atol=1e-14)


def test_counts_follow_the_epochs():
    problem = make_problem()
    settings = {"batch_size": 16, "lr": 0.05, "l2": 0.0, "seed": 0}
    _, counts = adam(problem, epochs=6, **settings)
    for epoch in (1, 4, 6):
        theta, _ = adam(problem, epochs=epoch, **settings)
        assert counts[epoch - 1] == count_correct(theta, problem.test_x, problem.test_y)
    assert len(set(counts)) > 1


def test_padding_never_learns():
    problem = make_problem()
    assert problem.x.shape == (83, 16)
    theta, _ = adam(problem, epochs=3, batch_size=16, lr=0.01, l2=0.1, seed=0)
    assert torch.equal(theta[12:], torch.zeros(4, 5, dtype=torch.float64))
    assert pad_columns(torch.zeros(2, 512)).shape == (2, 520)
    assert pad_columns(torch.zeros(2, 7)).shape == (2, 8)


def test_initial_is_linears():
    problem = make_problem(f=400, c=300)
    theta = initial(problem, torch.Generator().manual_seed(0))
    layer = nn.Linear(400, 300)
    ours, theirs = theta[:401].flatten(), torch.cat([layer.weight.flatten(), layer.bias]).data.double()
    torch.testing.assert_close(ours.std(), theirs.std(), rtol=0.01, atol=0)
    assert ours.abs().max() <= 1 / 20
    assert ours.abs().max() > 0.99 / 20


def test_lbfgs_is_scikit_learns():
    problem = make_problem()
    weight, bias = parts(lbfgs(problem, max_iter=500, l2=0.05), problem)
    theirs = LogisticRegression(C=1 / (0.05 * 83), tol=1e-10, max_iter=5000)
    theirs.fit(problem.x[:, :11].numpy(), problem.y.numpy())
    np.testing.assert_allclose(weight.numpy(), theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(bias - bias.mean(), theirs.intercept_ - theirs.intercept_.mean(), atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("number", range(max(1, min(2, torch.cuda.device_count()))))
@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_the_cuda_graph_computes_what_the_cpu_does(l2, number):
    problem = make_problem(n=1000, f=100, c=30)
    on_gpu = Problem(**{k: v.cuda(number) if isinstance(v, Tensor) else v for k, v in vars(problem).items()})
    settings = {"epochs": 5, "batch_size": 64, "lr": 0.01, "l2": l2, "seed": 0}
    (theta, counts), (expected, expected_counts) = adam(on_gpu, **settings), adam(problem, **settings)
    torch.testing.assert_close(theta.cpu(), expected, rtol=0, atol=1e-8)
    assert counts == expected_counts
