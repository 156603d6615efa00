"""Neighbourhood Components Analysis as a scikit-learn estimator, on torch.

    min_A Σ_i ℓ(q_i, Σ_{j: c_j = c_i} p_ij),   p_ij = e^(−‖Ax_i−Ax_j‖²) / Σ_{k≠i} e^(−‖Ax_i−Ax_k‖²)

with q_i = 1 and ℓ the KL divergence (the paper's choice) or the total variation distance. The map is the
matrix A or any torch module; the whole set is fitted by L-BFGS, minibatches by Adam.

Shapes: B points, F input features, D components.
"""

from copy import deepcopy
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from intnacl.errors import InputError, check_choice
from intnacl.theory.neighbours import OBJECTIVES, leave_one_out_accuracy, neighbour_loss

Array = npt.NDArray[Any]
INITS = ("auto", "lda", "pca", "identity", "random")


def initial_map(init: str, X_BF: Array, y_B: Array, D: int, rng: np.random.RandomState) -> Array:
    """Return the starting matrix A, (D, F); the choice matters, because the loss has many minima.

    "auto" uses linear discriminants if the data have D of them, else principal components, else the identity.
    """
    B, F = X_BF.shape
    if init == "auto":
        if min(F, len(np.unique(y_B)) - 1) >= D:
            discriminants_DF = initial_map("lda", X_BF, y_B, D, rng)
            if len(discriminants_DF) == D:  # classes whose means coincide leave fewer
                return discriminants_DF
        init = "pca" if min(B, F) > D else "identity"
    start_DF: Array
    if init == "lda":
        start_DF = LinearDiscriminantAnalysis(n_components=D).fit(X_BF, y_B).scalings_.T[:D]
    elif init == "pca":
        start_DF = PCA(D, random_state=rng).fit(X_BF).components_
    elif init == "identity":
        start_DF = np.eye(D, F)
    else:
        start_DF = rng.standard_normal((D, F)) / np.sqrt(F)
    return start_DF


class NCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Learn the map under which a point's nearest neighbours share its class (eq. NCA).

    Args:
        n_components: Rows of A; None keeps the number of features.
        objective: "tv" minimises mean 1 − p_i, as scikit-learn does; "kl" minimises mean −log p_i.
        init: Start of A: "auto", "lda", "pca", "identity" or "random".
        encoder: A torch module used in place of A, (B, F) -> (B, D), lazy layers too; it is copied, and the
            fitted copy is `encoder_`.
        batch_size: None for the whole set with L-BFGS; else Adam on shuffled batches, where a point's
            neighbours are the other points of the batch.
        max_iter: L-BFGS iterations, or epochs of Adam.
        tol: L-BFGS stops when an iteration lowers the loss by less than this, or when the gradient of the
            summed loss is smaller.
        learning_rate: Adam's learning rate in the first epoch; it falls linearly to zero.
        n_neighbors: Neighbours that vote in `score`.
        device: "auto" (a GPU if there is one), "cpu", "cuda", …
        random_state: Seed or generator of the start, the batches and the encoder's own draws.

    Attributes:
        components_: A, (D, F); only for the linear map.
        encoder_: The fitted module; for the linear map an `nn.Linear` that holds A.
        n_iter_: L-BFGS iterations or epochs done; at least 1, even if the start was a minimum.
        loss_: Mean objective at the last evaluation.

    Examples:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> nca = NCA(n_components=2, random_state=0).fit(X, y)
        >>> nca.transform(X).shape
        (150, 2)
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        objective: str = "tv",
        init: str = "auto",
        encoder: nn.Module | None = None,
        batch_size: int | None = None,
        max_iter: int = 50,
        tol: float = 1e-5,
        learning_rate: float = 1.5e-2,
        n_neighbors: int = 1,
        device: str = "auto",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_components = n_components
        self.objective = objective
        self.init = init
        self.encoder = encoder
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.tol = tol
        self.learning_rate = learning_rate
        self.n_neighbors = n_neighbors
        self.device = device
        self.random_state = random_state

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Learn the map from points X (B, F) and their classes y (B,)."""
        X_BF, y_B = validate_data(self, X, y, dtype=(np.float64, np.float32), ensure_min_samples=2)
        check_classification_targets(y_B)
        self.classes_, labels_B = np.unique(y_B, return_inverse=True)
        self._check(X_BF, labels_B)
        rng = check_random_state(self.random_state)
        x_BF = self._tensor(X_BF)
        self.encoder_ = self._start(X_BF, labels_B, rng).to(x_BF)
        c_B = torch.as_tensor(labels_B, device=x_BF.device)
        # Torch's draws here are seeded from `rng`; the caller's torch generator is left unchanged.
        with torch.random.fork_rng([x_BF.device] if x_BF.device.type == "cuda" else []):
            torch.manual_seed(rng.randint(2**31))
            self._n_features_out = self._components(x_BF)
            if self.batch_size is None:
                self.loss_, self.n_iter_ = self._lbfgs(x_BF, c_B)
            else:
                self.loss_, self.n_iter_ = self._adam(x_BF, c_B, rng, min(self.batch_size, len(x_BF)))
        if self.encoder is None:
            self.components_ = next(self.encoder_.parameters()).detach().cpu().numpy()
        return self

    def transform(self, X: npt.ArrayLike) -> Array:
        """Map points X (B, F) into the learned space: (B, D)."""
        check_is_fitted(self)
        X_BF = validate_data(self, X, dtype=(np.float64, np.float32), reset=False)
        z_BD: Array = self._embed(self._tensor(X_BF)).cpu().numpy()
        return z_BD.astype(X_BF.dtype, copy=False)

    def score(self, X: npt.ArrayLike, y: npt.ArrayLike) -> float:
        """Return the leave-one-out accuracy of `n_neighbors` nearest neighbours among the points X."""
        check_is_fitted(self)
        X_BF, y_B = validate_data(self, X, y, dtype=(np.float64, np.float32), reset=False)
        if len(X_BF) <= self.n_neighbors:
            raise InputError(
                f"{len(X_BF)} points leave {len(X_BF) - 1} neighbours for each, fewer than "
                f"n_neighbors={self.n_neighbors}: score more points or lower n_neighbors."
            )
        labels_B = torch.as_tensor(np.unique(y_B, return_inverse=True)[1])
        return leave_one_out_accuracy(self._embed(self._tensor(X_BF)).cpu(), labels_B, self.n_neighbors)

    def _check(self, X_BF: Array, labels_B: Array) -> None:
        """Raise for settings that do not suit this data."""
        check_choice("objective", self.objective, OBJECTIVES)
        check_choice("init", self.init, INITS)
        B, F = X_BF.shape
        if len(self.classes_) < 2:
            raise InputError(
                f"y holds one class, {self.classes_.tolist()}; NCA separates two or more: check the labels."
            )
        if np.bincount(labels_B).max() < 2:
            raise InputError(
                f"y holds {len(self.classes_)} classes of one point each; NCA needs two points of one class."
            )
        if self.encoder is None and self.n_components is not None and not 1 <= self.n_components <= F:
            raise InputError(
                f"n_components={self.n_components} must lie in 1…{F}, the number of features of X."
            )
        discriminants = min(F, len(self.classes_) - 1)
        if self.init == "lda" and (self.n_components or F) > discriminants:
            raise InputError(
                f"init='lda' gives at most {discriminants} components here: lower n_components or use 'pca'."
            )
        if not 1 <= self.n_neighbors < B:
            raise InputError(
                f"n_neighbors={self.n_neighbors} must lie in 1…{B - 1}: X has {B} points (n_samples={B})."
            )
        if self.batch_size is not None and self.batch_size < 2:
            raise InputError(
                f"batch_size={self.batch_size} leaves a point without neighbours: give 2 or more, or None."
            )
        if self.encoder is not None and not isinstance(self.encoder, nn.Module):
            raise InputError(f"encoder={self.encoder!r} is not a torch module.")
        if self.encoder is not None and not any(weight.requires_grad for weight in self.encoder.parameters()):
            raise InputError(f"encoder={self.encoder} has no weights to learn.")
        if self.max_iter < 1:
            raise InputError(f"max_iter={self.max_iter} must be 1 or more.")

    def _tensor(self, X_BF: Array) -> Tensor:
        auto = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            return torch.tensor(X_BF, device=auto if self.device == "auto" else self.device)
        except (RuntimeError, AssertionError) as error:
            raise InputError(
                f"device={self.device!r} cannot be used here: give 'auto' or 'cpu'. {error}"
            ) from error

    def _start(self, X_BF: Array, labels_B: Array, rng: np.random.RandomState) -> nn.Module:
        if self.encoder is not None:
            return deepcopy(self.encoder)
        start_DF = initial_map(self.init, X_BF, labels_B, self.n_components or X_BF.shape[1], rng)
        D, F = start_DF.shape
        if self.n_components not in (None, D):
            raise InputError(
                f"init={self.init!r} finds {D} directions, n_components={self.n_components}: use 'pca'."
            )
        linear = nn.Linear(F, D, bias=False, device="meta")  # draws nothing from torch's generator
        linear.weight = nn.Parameter(torch.as_tensor(start_DF.copy()))
        return linear

    def _components(self, x_BF: Tensor) -> int:
        """Map one point, which also initialises lazy layers, and return the dimension of the output."""
        try:
            shape = tuple(self._embed(x_BF[:1]).shape)
        except RuntimeError as error:
            raise InputError(f"encoder cannot map points of {x_BF.shape[1]} features: {error}") from error
        if len(shape) != 2 or shape[1] != (self.n_components or shape[1]):
            columns = self.n_components or "components"
            raise InputError(f"encoder maps one point to the shape {shape}: expected (1, {columns}).")
        return shape[1]

    @torch.no_grad()
    def _embed(self, x_BF: Tensor) -> Tensor:
        weight = next(self.encoder_.parameters())
        z_BD: Tensor = self.encoder_.eval()(x_BF.to(weight.device, weight.dtype))
        return z_BD

    def _lbfgs(self, x_BF: Tensor, c_B: Tensor) -> tuple[float, int]:
        """Minimise by SciPy's L-BFGS on the flattened weights: about one evaluation per iteration."""
        weights = [weight for weight in self.encoder_.train().parameters() if weight.requires_grad]

        def loss_and_gradient(flat: Array) -> tuple[float, Array]:
            vector_to_parameters(torch.as_tensor(flat).to(weights[0]), weights)
            loss = neighbour_loss(self.encoder_(x_BF), c_B, self.objective)
            gradient = parameters_to_vector(torch.autograd.grad(loss, weights))
            return loss.item(), gradient.double().cpu().numpy()

        start = parameters_to_vector(weights).detach().double().cpu().numpy()
        # The loss is a mean: dividing gtol by B gives the stopping rule of the summed loss.
        options = {"maxiter": self.max_iter, "ftol": self.tol, "gtol": self.tol / len(x_BF)}
        best = minimize(loss_and_gradient, start, jac=True, method="L-BFGS-B", options=options)
        vector_to_parameters(torch.as_tensor(best.x).to(weights[0]), weights)
        return float(best.fun), max(1, int(best.nit))

    def _adam(
        self, x_BF: Tensor, c_B: Tensor, rng: np.random.RandomState, batch_size: int
    ) -> tuple[float, int]:
        """Minimise by Adam on shuffled batches."""
        optimiser = torch.optim.Adam(self.encoder_.train().parameters(), self.learning_rate)
        losses: list[Tensor] = []
        for epoch in range(self.max_iter):
            # At a constant rate the noise of small batches undoes what the first epochs learned.
            optimiser.param_groups[0]["lr"] = self.learning_rate * (1 - epoch / self.max_iter)
            losses = []
            order_B = torch.as_tensor(rng.permutation(len(x_BF)), device=x_BF.device)
            for rows in torch.split(order_B, batch_size):
                if len(rows) > 1:
                    loss = neighbour_loss(self.encoder_(x_BF[rows]), c_B[rows], self.objective)
                    optimiser.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
                    losses.append(loss.detach())
        return torch.stack(losses).mean().item(), self.max_iter

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
