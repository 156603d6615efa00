"""The NCA estimator: scikit-learn's rules and accuracy, and what scikit-learn's own lacks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier, NeighborhoodComponentsAnalysis
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from intnacl.errors import InputError
from intnacl.theory.nca import INITS, NCA, initial_map
from intnacl.theory.neighbours import leave_one_out_accuracy, neighbour_loss


def table(name: str) -> tuple[np.ndarray, np.ndarray]:
    X, y = {"iris": load_iris, "wine": load_wine, "digits": load_digits}[name](return_X_y=True)
    return StandardScaler().fit_transform(X), y


@parametrize_with_checks(
    [
        NCA(max_iter=5, device="cpu"),
        NCA(max_iter=5, device="cpu", objective="kl"),
        NCA(max_iter=5, device="cpu", batch_size=16),
        NCA(max_iter=5, device="cpu", batch_size=16, objective="kl"),
        NCA(1, max_iter=5, device="cpu", init="lda"),  # at times a minimum already
        NCA(1, max_iter=5, device="cpu", encoder=nn.LazyLinear(1)),
        NCA(1, max_iter=5, device="cpu", encoder=nn.LazyLinear(1), batch_size=16),
    ]
)
def test_follows_every_rule_of_scikit_learn(estimator: NCA, check: Callable[[NCA], None]) -> None:
    check(estimator)


@pytest.mark.parametrize(
    ("name", "components"), [("iris", 2), ("iris", 4), ("wine", 2), ("wine", 13), ("digits", 16)]
)
def test_at_least_as_accurate_as_scikit_learn(name: str, components: int) -> None:
    X, y = table(name)
    methods = (NCA(components, random_state=0), NeighborhoodComponentsAnalysis(components, random_state=0))
    spaces = [torch.tensor(method.fit(X, y).transform(X)) for method in methods]
    for neighbours in (1, 3, 5):
        ours, theirs = (leave_one_out_accuracy(z, torch.tensor(y), neighbours) for z in spaces)
        assert ours >= theirs


@pytest.mark.parametrize("objective", ["kl", "tv"])
@pytest.mark.parametrize("init", INITS)
def test_learning_lowers_its_own_objective(objective: str, init: str) -> None:
    X, y = table("wine")
    before = NCA(2, objective=objective, init=init, max_iter=1, tol=1e9, random_state=0).fit(X, y)
    after = NCA(2, objective=objective, init=init, random_state=0).fit(X, y)
    assert after.loss_ < 0.5 * before.loss_
    assert after.score(X, y) > 0.98


def test_loss_is_that_of_the_fitted_map() -> None:
    X, y = table("iris")
    nca = NCA(2, objective="kl", random_state=0).fit(X, y)
    loss = neighbour_loss(torch.tensor(nca.transform(X)), torch.tensor(y), "kl").item()
    assert loss == pytest.approx(nca.loss_)
    np.testing.assert_allclose(nca.transform(X), X @ nca.components_.T, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("objective", ["kl", "tv"])
def test_minibatches_learn_the_whole_set(objective: str) -> None:
    """Two dimensions are the noisiest in batches: there a constant rate leaves KL where it began."""
    X, y = table("digits")
    nca = NCA(16, objective=objective, init="pca", batch_size=256, max_iter=20, random_state=0).fit(X, y)
    assert nca.score(X, y) > leave_one_out_accuracy(torch.tensor(X), torch.tensor(y)) + 0.01
    start = NCA(2, objective=objective, max_iter=1, tol=1e9, random_state=0).fit(X, y).loss_
    nca = NCA(2, objective=objective, batch_size=256, max_iter=20, random_state=0).fit(X, y)
    after = neighbour_loss(torch.tensor(nca.transform(X)), torch.tensor(y), objective).item()
    assert after < 0.9 * start


@pytest.mark.parametrize("batch_size", [None, 64])
def test_an_encoder_bends_what_no_matrix_can(batch_size: int | None) -> None:
    torch.manual_seed(0)
    rng = np.random.RandomState(0)
    X = rng.standard_normal((256, 2))
    y = (X.prod(1) > 0).astype(int)  # exclusive or: quadrants of one class lie opposite each other
    encoder = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
    weights = [p.clone() for p in encoder.parameters()]
    linear = NCA(1, random_state=0).fit(X, y)
    bent = NCA(encoder=encoder, objective="kl", batch_size=batch_size, max_iter=100, random_state=0).fit(X, y)
    assert bent.score(X, y) > 0.93 > linear.score(X, y) + 0.1
    assert bent.transform(X).shape == (256, 1)
    assert not hasattr(bent, "components_")
    copied = zip(weights, encoder.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in copied), "the argument was trained, not a copy"


@pytest.mark.parametrize(
    "encoder", [None, nn.Sequential(nn.LazyLinear(8), nn.Dropout(), nn.ReLU(), nn.LazyLinear(2))]
)
def test_equal_seeds_give_equal_maps_and_leave_torch_alone(encoder: nn.Module | None) -> None:
    """Lazy weights and dropout are drawn from `random_state` too."""
    X, y = table("wine")
    nca = NCA(2, encoder=encoder, init="random", batch_size=32, max_iter=3, random_state=3)
    state = torch.get_rng_state()
    first, second, other = (
        clone(nca).set_params(random_state=seed).fit(X, y).transform(X) for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)
    assert np.abs(first - other).max() > 1e-3


def test_works_in_pipelines_and_searches_with_names_for_labels() -> None:
    X, y = load_wine(return_X_y=True)
    names = np.array(["barolo", "grignolino", "barbera"])[y]
    pipeline = make_pipeline(StandardScaler(), NCA(2, max_iter=10), KNeighborsClassifier())
    search = GridSearchCV(pipeline, {"nca__objective": ["kl", "tv"]}, cv=3).fit(X, names)
    assert search.best_score_ > 0.9
    assert list(NCA(2).fit(X, names).get_feature_names_out()) == ["nca0", "nca1"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"objective": "l2"}, "objective='l2'.*kl, tv"),
        ({"init": "pcaa"}, "init='pcaa'.*did you mean 'pca'"),
        ({"n_components": 5}, "n_components=5.*1…4"),
        ({"n_components": 0}, "n_components=0.*1…4"),
        ({"n_neighbors": 150}, "n_neighbors=150.*1…149.*150 points"),
        ({"n_neighbors": 0}, "n_neighbors=0"),
        ({"batch_size": 1}, "batch_size=1.*2 or more"),
        ({"max_iter": 0}, "max_iter=0"),
        ({"device": "abacus"}, "device='abacus'.*'auto' or 'cpu'"),
        ({"encoder": nn.Flatten()}, "no weights to learn"),
        ({"encoder": nn.Linear(4, 2), "n_components": 3}, r"encoder.*shape \(1, 2\).*expected \(1, 3\)"),
        ({"encoder": nn.Linear(5, 2)}, "encoder cannot map points of 4 features"),
        ({"encoder": nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))}, r"shape \(1,\).*\(1, components\)"),
        ({"encoder": abs}, "encoder=<built-in function abs> is not a torch module"),
        ({"init": "lda", "n_components": 3}, "init='lda'.*at most 2"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        NCA(**settings).fit(*load_iris(return_X_y=True))


@pytest.mark.parametrize(
    ("labels", "words"),
    [([3, 3, 3, 3], r"one class, \[3\]"), ([3, 1, 2, 0], "4 classes of one point each")],
)
def test_labels_without_pairs_in_two_classes_are_refused(labels: list[int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        NCA().fit(np.eye(4), labels)


def start(init: str, components: int) -> np.ndarray:
    return initial_map(init, *load_iris(return_X_y=True), components, np.random.RandomState(0))


@pytest.mark.parametrize(("components", "chosen"), [(2, "lda"), (3, "pca"), (4, "identity")])
def test_auto_starts_from_the_best_that_the_sizes_allow(components: int, chosen: str) -> None:
    assert start("auto", components).shape == (components, 4)
    np.testing.assert_array_equal(start("auto", components), start(chosen, components))


def test_principal_components_are_orthonormal_and_discriminants_separate() -> None:
    X, y = load_iris(return_X_y=True)
    np.testing.assert_allclose(start("pca", 3) @ start("pca", 3).T, np.eye(3), atol=1e-12)
    classes = [(X @ start("lda", 1).T)[y == k] for k in range(3)]
    assert np.ptp([z.mean() for z in classes]) > 5 * max(z.std() for z in classes)


def test_discriminants_that_coincide_are_left_or_refused() -> None:
    """Three classes, two of them on the same points: one discriminant."""
    X = load_iris().data
    doubled, labels = np.vstack([X[:50], X[50:100], X[50:100]]), np.repeat([0, 1, 2], 50)
    assert NCA(2, max_iter=1).fit(doubled, labels).components_.shape == (2, 4)
    with pytest.raises(InputError, match=r"init='lda' finds 1 directions, n_components=2"):
        NCA(2, init="lda").fit(doubled, labels)


def test_scoring_fewer_points_than_neighbours_is_refused() -> None:
    X, y = table("iris")
    nca = NCA(2, n_neighbors=3, max_iter=1).fit(X, y)
    with pytest.raises(InputError, match=r"3 points leave 2 neighbours.*n_neighbors=3"):
        nca.score(X[:3], y[:3])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_map() -> None:
    X, y = table("wine")
    cpu, gpu = (NCA(2, device=device, max_iter=5, random_state=0).fit(X, y) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(cpu.components_, gpu.components_, rtol=1e-4, atol=1e-6)


def test_a_batch_beyond_all_integers_is_the_whole_set() -> None:
    X, y = load_iris(return_X_y=True)
    whole, beyond = (
        NCA(2, batch_size=size, max_iter=3, random_state=0, device="cpu").fit(X, y) for size in (150, 2**64)
    )
    np.testing.assert_array_equal(whole.components_, beyond.components_)
