"""The NCA estimator: scikit-learn's rules, its accuracy, and features that scikit-learn's NCA lacks."""

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
from mistakes import refused


def table(name: str) -> tuple[np.ndarray, np.ndarray]:
    X, y = {"iris": load_iris, "wine": load_wine, "digits": load_digits}[name](return_X_y=True)
    return StandardScaler().fit_transform(X), y


@parametrize_with_checks(
    [
        *(NCA(max_iter=5, device="cpu", batch_size=b, objective=o) for b in (None, 16) for o in ("tv", "kl")),
        NCA(1, max_iter=5, device="cpu", init="lda"),  # sometimes already a minimum
        NCA(1, max_iter=5, device="cpu", encoder=nn.LazyLinear(1)),
        NCA(1, max_iter=5, device="cpu", encoder=nn.LazyLinear(1), batch_size=16),
    ]
)
def test_follows_every_rule_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize(("name", "d"), [("iris", 2), ("iris", 4), ("wine", 2), ("wine", 13), ("digits", 16)])
def test_at_least_as_accurate_as_scikit_learn(name, d):
    X, y = table(name)
    methods = (NCA(d, random_state=0), NeighborhoodComponentsAnalysis(d, random_state=0))
    spaces = [torch.tensor(method.fit(X, y).transform(X)) for method in methods]
    for neighbours in (1, 3, 5):
        ours, theirs = (leave_one_out_accuracy(z, torch.tensor(y), neighbours) for z in spaces)
        assert ours >= theirs


@pytest.mark.parametrize("objective", ["kl", "tv"])
@pytest.mark.parametrize("init", INITS)
def test_learning_lowers_its_own_objective(objective, init):
    X, y = table("wine")
    nca = NCA(2, objective=objective, init=init, random_state=0)
    before, after = clone(nca).set_params(max_iter=1, tol=1e9).fit(X, y).loss_, nca.fit(X, y).loss_
    assert after < 0.5 * before
    assert nca.score(X, y) > 0.98
    z = torch.tensor(nca.transform(X))
    assert neighbour_loss(z, torch.tensor(y), objective).item() == pytest.approx(after)
    np.testing.assert_allclose(z, X @ nca.components_.T, rtol=1e-10, atol=1e-10)
    whole, beyond = (clone(nca).set_params(batch_size=n, max_iter=3).fit(X, y) for n in (len(X), 2**64))
    np.testing.assert_array_equal(whole.components_, beyond.components_)


@pytest.mark.parametrize("objective", ["kl", "tv"])
def test_minibatches_learn_the_whole_set(objective):
    """Batches are noisiest in two dimensions, where KL makes no progress at a constant rate."""
    X, y = table("digits")
    nca = NCA(16, objective=objective, batch_size=256, max_iter=20, random_state=0)
    accuracy = clone(nca).set_params(init="pca").fit(X, y).score(X, y)
    assert accuracy > leave_one_out_accuracy(torch.tensor(X), torch.tensor(y)) + 0.01
    start = NCA(2, objective=objective, max_iter=1, tol=1e9, random_state=0).fit(X, y).loss_
    z = torch.tensor(nca.set_params(n_components=2).fit_transform(X, y))
    assert neighbour_loss(z, torch.tensor(y), objective).item() < 0.9 * start


@pytest.mark.parametrize("batch_size", [None, 64])
def test_an_encoder_separates_classes_that_no_matrix_can(batch_size):
    X = np.random.RandomState(0).standard_normal((256, 2))
    y = (X.prod(1) > 0).astype(int)  # XOR: the quadrants of one class lie opposite each other
    encoder = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
    weights = [p.clone() for p in encoder.parameters()]
    linear, bent = NCA(1), NCA(encoder=encoder, objective="kl", batch_size=batch_size, max_iter=100)
    linear, bent = (nca.set_params(random_state=0).fit(X, y) for nca in (linear, bent))
    assert bent.score(X, y) > 0.93 > linear.score(X, y) + 0.1
    assert bent.transform(X).shape == (256, 1)
    assert not hasattr(bent, "components_")
    assert all(map(torch.equal, weights, encoder.parameters())), "the argument was trained, not a copy"


LAZY = nn.Sequential(nn.LazyLinear(8), nn.Dropout(), nn.ReLU(), nn.LazyLinear(2))


@pytest.mark.parametrize("encoder", [None, LAZY])
def test_equal_seeds_give_equal_maps_and_leave_the_generator_of_torch_unchanged(encoder):
    """Lazy weights and dropout are drawn from `random_state` too."""
    X, y = table("wine")
    nca, state = NCA(2, encoder=encoder, init="random", batch_size=32, max_iter=3), torch.get_rng_state()
    first, second, other = (clone(nca).set_params(random_state=n).fit(X, y).transform(X) for n in (3, 3, 4))
    np.testing.assert_array_equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)
    assert np.abs(first - other).max() > 1e-3


def test_works_in_pipelines_and_grid_searches_with_string_labels():
    X, y = load_wine(return_X_y=True)
    names = np.array(["barolo", "grignolino", "barbera"])[y]
    pipeline = make_pipeline(StandardScaler(), NCA(2, max_iter=10), KNeighborsClassifier())
    search = GridSearchCV(pipeline, {"nca__objective": ["kl", "tv"]}, cv=3).fit(X, names)
    assert search.best_score_ > 0.9
    assert list(NCA(2).fit(X, names).get_feature_names_out()) == ["nca0", "nca1"]


test_bad_settings_are_named = refused(
    lambda settings: NCA(**settings).fit(*load_iris(return_X_y=True)),
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
)


def test_insufficient_data_are_refused():
    with pytest.raises(InputError, match=r"one class, \[3\]"):
        NCA().fit(np.eye(4), [3, 3, 3, 3])
    with pytest.raises(InputError, match="4 classes of one point each"):
        NCA().fit(np.eye(4), [3, 1, 2, 0])
    X, y = table("iris")
    with pytest.raises(InputError, match=r"3 points leave 2 neighbours.*n_neighbors=3"):
        NCA(2, n_neighbors=3, max_iter=1).fit(X, y).score(X[:3], y[:3])


def test_auto_chooses_the_best_start_that_the_sizes_allow():
    """Principal components are orthonormal, and discriminants separate the classes."""
    X, y = load_iris(return_X_y=True)

    def start(init: str, components: int) -> np.ndarray:
        return initial_map(init, X, y, components, np.random.RandomState(0))

    for components, chosen in ((2, "lda"), (3, "pca"), (4, "identity")):
        assert start("auto", components).shape == (components, 4)
        np.testing.assert_array_equal(start("auto", components), start(chosen, components))
    np.testing.assert_allclose(start("pca", 3) @ start("pca", 3).T, np.eye(3), atol=1e-12)
    classes = [(X @ start("lda", 1).T)[y == k] for k in range(3)]
    assert np.ptp([z.mean() for z in classes]) > 5 * max(z.std() for z in classes)
    # Three classes, two of them on the same points, have one discriminant.
    doubled, labels = np.vstack([X[:50], X[50:100], X[50:100]]), np.repeat([0, 1, 2], 50)
    assert NCA(2, max_iter=1).fit(doubled, labels).components_.shape == (2, 4)
    with pytest.raises(InputError, match=r"init='lda' finds 1 directions, n_components=2"):
        NCA(2, init="lda").fit(doubled, labels)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_map():
    X, y = table("wine")
    cpu, gpu = (NCA(2, device=device, max_iter=5, random_state=0).fit(X, y) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(cpu.components_, gpu.components_, rtol=1e-4, atol=1e-6)
