"""kNN against scikit-learn, against a loop, and at its limits."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from digits_model import digits, trained_model
from intnacl.errors import InputError
from intnacl.evaluation.features import extract
from intnacl.evaluation.knn import KnnConfig, predict, score
from mistakes import must_refuse


@pytest.fixture
def features():
    images, labels = digits()
    features = extract(trained_model()[0], images[::2])
    return features[:600], labels[::2][:600], features[600:], labels[::2][600:]


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.1), (20, 0.1), (200, 0.07)])
def test_weighted_knn_equals_scikit_learns(features, k, temperature):
    train, labels, test, _ = (item.double().numpy() for item in features)
    options = {"metric": "cosine", "algorithm": "brute", "weights": lambda d: np.exp(-d / temperature)}
    theirs = KNeighborsClassifier(k, **options).fit(train, labels).predict(test)
    ours = predict(*features[:3], KnnConfig(k=k, temperature=temperature), classes=10)
    assert (ours.numpy() == theirs).mean() > 0.995


@pytest.mark.parametrize("k", [1, 2, 10])  # of two that differ, the lower class wins
def test_uniform_knn_equals_scikit_learns_default(features, k):
    train, labels, test, _ = (item.double().numpy() for item in features)
    theirs = KNeighborsClassifier(n_neighbors=k, metric="cosine").fit(train, labels).predict(test)
    train, labels, test, _ = features
    ours = predict(train.double(), labels, test.double(), KnnConfig(k=k, weights="uniform"), classes=10)
    assert ours.tolist() == theirs.tolist()
    weighted = predict(train.double(), labels, test.double(), KnnConfig(k=k), classes=10)
    assert torch.equal(ours, weighted) == (k == 1)


def test_knn_equals_a_loop():
    torch.manual_seed(1)
    train, labels, test = torch.randn(30, 4).double(), torch.randint(3, (30,)), torch.randn(11, 4).double()
    expected = []
    for x in test:
        cosines = torch.nn.functional.cosine_similarity(x[None], train)
        votes = [0.0] * 3
        for i in cosines.argsort(descending=True)[:7].tolist():
            votes[labels[i]] += (cosines[i] / 0.1).exp().item()
        expected.append(votes.index(max(votes)))
    assert predict(train, labels, test, KnnConfig(k=7), classes=3).tolist() == expected


def test_tiles_do_not_matter_and_a_training_sample_is_its_own_nearest_neighbour(features):
    train, labels, *_ = features
    configs = (KnnConfig(k=20, tile=tile) for tile in (10_000, 7))
    assert torch.equal(*(predict(*features[:3], config, classes=10) for config in configs))
    assert score(train, labels, train, labels, KnnConfig(k=1))["accuracy"] == 100


def test_temperature_weighs_neighbours():
    train, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-0.1, 1.0]]), torch.tensor([0, 1, 1])
    for sample, temperature, expected in (
        ([1.0, 0.05], 0.1, 0),  # one near neighbour outvotes two far ones
        ([1.0, 0.05], 1e3, 1),  # equal weights
        ([-1.0, -0.1], 1e-3, 1),  # the nearest neighbour, however far it is
    ):
        config = KnnConfig(k=3, temperature=temperature)
        assert predict(train, labels, torch.tensor([sample]), config, classes=2).tolist() == [expected]


def test_a_class_that_has_no_training_samples_is_counted(features):
    train, labels, test, test_labels = features
    seen = labels < 9
    assert score(train[seen], labels[seen], test, test_labels)["classes"] == 10


def test_bad_settings_and_features_are_errors(features):
    train, labels, test, test_labels = features
    with pytest.raises(InputError, match=r"nan or infinity.*diverged"):
        score(train, labels, torch.full_like(test, torch.nan), test_labels)
    must_refuse(score, *features, KnnConfig(k=601), "k=601 neighbours of 600 training samples")
    for bad in ({"k": 0}, {"temperature": 0.0}, {"tile": -1}):
        must_refuse(KnnConfig, next(iter(bad)), **bad)
