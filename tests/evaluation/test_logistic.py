"""The written-out solvers against autograd, torch's optimiser and scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from intnacl.evaluation.logistic import Problem, adam, count_correct, initial, lbfgs, pad_columns


def make_problem(n: int = 83, f: int = 11, c: int = 5, dtype: torch.dtype = torch.float64) -> Problem:
    x, y = torch.randn(n, f, dtype=dtype), torch.randint(c, (n,))
    test, test_y = torch.randn(40, f, dtype=dtype), torch.randint(c, (40,))
    return Problem(x=pad_columns(x), y=y, test_x=pad_columns(test), test_y=test_y, features=f, classes=c)


def torch_adam(problem: Problem, epochs: int, batch_size: int, lr: float, l2: float, seed: int) -> nn.Linear:
    """The same training as anyone would write it: nn.Linear, CrossEntropyLoss, torch.optim.Adam."""
    generator, f = torch.Generator().manual_seed(seed), problem.features
    theta = initial(problem, generator)
    layer = nn.Linear(f, problem.classes, dtype=torch.float64)
    layer.load_state_dict({"weight": theta[:f].T, "bias": theta[f]})
    optimizer = torch.optim.Adam(layer.parameters(), lr=lr, weight_decay=l2)
    for _ in range(epochs):
        order = torch.randperm(len(problem.x), generator=generator)
        for batch in order[: len(order) // batch_size * batch_size].split(batch_size):
            optimizer.zero_grad()
            nn.CrossEntropyLoss()(layer(problem.x[batch, :f]), problem.y[batch]).backward()
            optimizer.step()
    return layer


def parts(theta_KC: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    return theta_KC[: problem.features].T, theta_KC[problem.features]


@pytest.mark.parametrize("l2", [0.0, 0.1])
@pytest.mark.parametrize(("epochs", "batch"), [(1, 16), (2, 16), (7, 16), *((n, 83) for n in range(1, 12))])
def test_adam_equals_training_with_torch(epochs, batch, l2):
    """83 samples in batches of 83, or more: one step an epoch."""
    problem = make_problem()
    settings = {"epochs": epochs, "lr": 0.01 if batch == 16 else 0.05, "l2": l2, "seed": 3}
    theta, _ = adam(problem, batch_size=batch, **settings)
    layer = torch_adam(problem, batch_size=batch, **settings)
    for ours, theirs in zip(parts(theta, problem), (layer.weight, layer.bias), strict=True):
        torch.testing.assert_close(ours, theirs.data, rtol=0, atol=1e-10)
    if batch == 83:
        assert torch.equal(adam(problem, batch_size=1000, **settings)[0], theta)


def test_correct_samples_are_counted_after_each_epoch():
    problem = make_problem()
    settings = {"batch_size": 16, "lr": 0.05, "l2": 0.0, "seed": 0}
    _, counts = adam(problem, epochs=6, **settings)
    for epoch in (1, 4, 6):
        theta, _ = adam(problem, epochs=epoch, **settings)
        assert counts[epoch - 1] == count_correct(theta, problem.test_x, problem.test_y)
    assert len(set(counts)) > 1


def test_padded_columns_stay_zero():
    problem = make_problem()
    assert problem.x.shape == (83, 16)
    theta, _ = adam(problem, epochs=3, batch_size=16, lr=0.01, l2=0.1, seed=0)
    assert torch.equal(theta[12:], torch.zeros(4, 5, dtype=torch.float64))
    assert pad_columns(torch.zeros(2, 512)).shape == (2, 520)
    assert pad_columns(torch.zeros(2, 7)).shape == (2, 8)


def test_initial_weights_equal_those_of_linear():
    problem = make_problem(f=400, c=300)
    theta = initial(problem, torch.Generator().manual_seed(0))
    layer = nn.Linear(400, 300)
    ours, theirs = theta[:401].flatten(), torch.cat([layer.weight.flatten(), layer.bias]).data.double()
    torch.testing.assert_close(ours.std(), theirs.std(), rtol=0.01, atol=0)
    assert 0.99 / 20 < ours.abs().max() <= 1 / 20


def test_lbfgs_equals_scikit_learns():
    problem = make_problem()
    weight, bias = parts(lbfgs(problem, max_iter=500, l2=0.05), problem)
    theirs = LogisticRegression(C=1 / (0.05 * 83), tol=1e-10, max_iter=5000)
    theirs.fit(problem.x[:, :11].numpy(), problem.y.numpy())
    np.testing.assert_allclose(weight.numpy(), theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(bias - bias.mean(), theirs.intercept_ - theirs.intercept_.mean(), atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("number", range(max(1, min(2, torch.cuda.device_count()))))
@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_the_cuda_graph_agrees_with_the_cpu(l2, number):
    problem = make_problem(n=1000, f=100, c=30)
    on_gpu = Problem(**{k: v.cuda(number) if isinstance(v, Tensor) else v for k, v in vars(problem).items()})
    settings = {"epochs": 5, "batch_size": 64, "lr": 0.01, "l2": l2, "seed": 0}
    (theta, counts), (expected, expected_counts) = adam(on_gpu, **settings), adam(problem, **settings)
    torch.testing.assert_close(theta.cpu(), expected, rtol=0, atol=1e-8)
    assert counts == expected_counts
