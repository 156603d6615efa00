"""A linear probe that is trained alongside the objective, to monitor features as they are learned.

Shapes: B rows of a batch on this rank, F features, K = F + 1 (the last one is constant 1), C classes.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from intnacl.losses.gather import world_size

RATE, BETAS, EPS = 3e-3, (0.9, 0.999), 1e-8  # Adam's
MOMENTUM = 0.1  # of the running mean and variance, as in batch norm
SMALLEST_VARIANCE = 1e-5


class OnlineProbe(nn.Module):
    """Softmax regression of labels on standardised features, with one step of Adam per batch.

        x̂ = ((h − μ) / σ, 1),   p = softmax(x̂ θ),   ∇ = mean of x̂ᵀ (p − onehot(y))

    As in the probes of MAE (He et al. 2022, A.1), features are standardised by their batch, so that one rate
    suits all encoders. Mean, variance and gradient are those of all ranks.

    The gradient is in closed form, so that autograd is not involved. All state is in buffers, so that
    captured graphs, undone trial updates and checkpoints need no special care.
    """

    theta_KC: Tensor
    first_KC: Tensor
    second_KC: Tensor
    mean_F: Tensor
    variance_F: Tensor
    updates: Tensor

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        for name in ("theta_KC", "first_KC", "second_KC"):
            self.register_buffer(name, torch.zeros(features + 1, classes))
        self.register_buffer("mean_F", torch.zeros(features))
        self.register_buffer("variance_F", torch.ones(features))
        self.register_buffer("updates", torch.zeros(()))

    @torch.no_grad()
    def forward(self, features_BF: Tensor) -> Tensor:
        """Return the logits of features (B, F), standardised by running mean and variance: (B, C)."""
        return _standardised(features_BF.to(self.mean_F), self.mean_F, self.variance_F) @ self.theta_KC

    @torch.no_grad()
    def learn(self, features_BF: Tensor, label_B: Tensor) -> Tensor:
        """Update on a batch; return the accuracy on it before the update, in percent."""
        with torch.autocast(features_BF.device.type, enabled=False):
            h_BF = features_BF.to(self.theta_KC.dtype)
            mean_F, square_F = _over_ranks(torch.stack([h_BF.mean(0), h_BF.square().mean(0)])).unbind()
            variance_F = (square_F - mean_F.square()).clamp(min=0)
            self.mean_F.lerp_(mean_F, MOMENTUM)
            self.variance_F.lerp_(variance_F, MOMENTUM)
            x_BK = _standardised(h_BF, mean_F, variance_F)
            logits_BC = x_BK @ self.theta_KC
            classes_C = torch.arange(logits_BC.shape[1], device=label_B.device)
            error_BC = logits_BC.softmax(1) - (label_B[:, None] == classes_C).to(logits_BC)
            grad_KC = _over_ranks(x_BK.T @ error_BC / len(x_BK))
            self.updates.add_(1)
            self.first_KC.lerp_(grad_KC, 1 - BETAS[0])
            self.second_KC.lerp_(grad_KC.square(), 1 - BETAS[1])
            first_KC = self.first_KC / (1 - BETAS[0] ** self.updates)
            second_KC = self.second_KC / (1 - BETAS[1] ** self.updates)
            self.theta_KC.sub_(RATE * first_KC / (second_KC.sqrt() + EPS))
            return 100 * (logits_BC.argmax(1) == label_B).float().mean()


def _standardised(h_BF: Tensor, mean_F: Tensor, variance_F: Tensor) -> Tensor:
    """Return x̂ (B, K): features of mean 0 and variance 1, and a constant 1."""
    return F.pad((h_BF - mean_F) * (variance_F + SMALLEST_VARIANCE).rsqrt(), (0, 1), value=1.0)


def _over_ranks(mean: Tensor) -> Tensor:
    """Return the mean over all ranks of a mean over each rank's rows."""
    if world_size() == 1:
        return mean
    dist.all_reduce(mean)
    return mean / world_size()
