"""Two ranks equal one process on the joined batch, values and gradients, for every preset."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from intnacl import IntNaClLoss
from intnacl.losses.config import PRESETS
from intnacl.losses.gather import gather_embedding

WORLD, B, D = 2, 3, 6
CASES: dict[str, dict] = PRESETS | {
    "nca": {"num_positives": 3, "negatives": "g2"},
    "relative": {"negatives": "g2", "alpha": 1.0, "weight": "relative"},
    "clean": {"nacl": "mixnca", "num_positives": 3, "mix_negatives": "clean"},
}


def value_and_gradient(loss: IntNaClLoss, weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of the views x (V, B, D) through a linear encoder, and the gradient of its weight."""
    weight = weight.clone().requires_grad_()
    need = loss.views_needed
    z0, z1, *others = x[: sum(need)] @ weight
    adversarial = others.pop() if need.adversarial else None
    value = loss(z0, z1, **{"mixed" if need.mixed else "extra": others}, adversarial=adversarial)
    return value.detach(), torch.autograd.grad(value, weight)[0]


def second_derivative(z: Tensor) -> str:
    """Return the error of a second derivative through the gathered rows."""
    z = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(gather_embedding(z, True).all_GD.square().sum(), z, create_graph=True)
    with pytest.raises(RuntimeError) as caught:
        torch.autograd.grad(gradient.square().sum(), z)
    return str(caught.value)


def run_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    given = torch.load(f"{folder}/given.pt", weights_only=True)
    results = {}
    for name in CASES:
        own = given["x"][:, rank * B : (rank + 1) * B]
        results[name] = value_and_gradient(IntNaClLoss(**CASES[name], gather=True), given["weight"], own)
    results["second derivative"] = second_derivative(own[0])
    torch.save(results, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    torch.manual_seed(0)
    x, weight = (torch.randn(shape, dtype=torch.float64) for shape in ((7, WORLD * B, D), (D, 5)))
    given = {"x": x, "weight": weight}
    torch.save(given, folder / "given.pt")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    mp.spawn(run_rank, (str(folder),), nprocs=WORLD)
    return given, [torch.load(Path(folder) / f"rank{r}.pt", weights_only=True) for r in range(WORLD)]


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_equal_one_process(name, ranks):
    given, results = ranks
    value, gradient = value_and_gradient(IntNaClLoss(**CASES[name]), given["weight"], given["x"])
    values, gradients = map(torch.stack, zip(*(result[name] for result in results), strict=True))
    torch.testing.assert_close(values.mean(), value, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients.mean(0), gradient, rtol=1e-10, atol=1e-12)  # DDP's average


def test_a_second_derivative_through_gathered_rows_is_refused(ranks):
    assert all("cannot be differentiated again" in result["second derivative"] for result in ranks[1])


def test_without_a_process_group_gather_means_one_process():
    z = torch.randn(4, 3)
    assert gather_embedding(z, gather=True) == (z, z, 0)
