"""kNN against scikit-learn, against a loop, and at its limits."""

from copy import deepcopy

import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from digits_model import digits, trained_model
from intnacl.errors import InputError
from intnacl.evaluation.features import extract
from intnacl.evaluation.knn import KnnConfig, evaluate, predict, score, suited


@pytest.fixture
def features():
    images, labels = digits()
    features = extract(trained_model()[0], images[::2])
    return features[:600], labels[::2][:600], features[600:], labels[::2][600:]


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.1), (20, 0.1), (200, 0.07)])
def test_knn_is_scikit_learns(features, k, temperature):
    train, train_labels, test, _ = features
    theirs = KNeighborsClassifier(
        k,
        metric="cosine",
        algorithm="brute",
        weights=lambda d: torch.exp(-torch.from_numpy(d) / temperature).numpy(),
    )
    theirs.fit(train.double().numpy(), train_labels.numpy())
    ours = predict(train, train_labels, test, KnnConfig(k=k, temperature=temperature), classes=10)
    assert (ours.numpy() == theirs.predict(test.double().numpy())).mean() > 0.995


def test_knn_is_the_loop():
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


def test_tiles_do_not_matter(features):
    train, train_labels, test, _ = features
    whole, tiled = (
        predict(train, train_labels, test, KnnConfig(k=20, tile=tile), classes=10) for tile in (10_000, 7)
    )
    assert torch.equal(whole, tiled)


def test_the_nearest_neighbour_of_a_training_sample_is_itself(features):
    train, labels, _, _ = features
    assert score(train, labels, train, labels, KnnConfig(k=1))["accuracy"] == 100


def test_weights_let_one_near_neighbour_outvote_far_ones():
    train, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-0.1, 1.0]]), torch.tensor([0, 1, 1])
    test = torch.tensor([[1.0, 0.05]])
    config = {"temperature": 0.1, "k": 3}
    assert predict(train, labels, test, KnnConfig(**config), classes=2).tolist() == [0]
    assert predict(train, labels, test, KnnConfig(**config | {"temperature": 1e3}), classes=2).tolist() == [1]


def test_a_low_temperature_is_the_nearest_neighbour_however_far_it_is():
    train, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    config = KnnConfig(k=2, temperature=1e-3)
    assert predict(train, labels, torch.tensor([[-1.0, -0.1]]), config, classes=2).tolist() == [1]


def test_a_class_that_has_no_training_samples_is_counted(features):
    train, labels, test, test_labels = features
    seen = labels < 9
    assert score(train[seen], labels[seen], test, test_labels)["classes"] == 10


@pytest.mark.parametrize(("samples", "classes", "k"), [(50_000, 100, 200), (1_000, 100, 10), (3, 5, 1)])
def test_as_many_neighbours_suit_as_a_class_has_samples(samples, classes, k):
    assert suited(samples, classes).k == k


def test_features_that_are_not_numbers_are_an_error(features):
    train, train_labels, test, test_labels = features
    with pytest.raises(InputError, match=r"nan or infinity.*diverged"):
        score(train, train_labels, torch.full_like(test, torch.nan), test_labels)


def test_evaluate_counts_all_test_images():
    images, labels = digits()
    encoder = deepcopy(trained_model()[0]).train()
    figures = evaluate(
        encoder, (images[:1000], labels[:1000]), (images[1397:], labels[1397:]), KnnConfig(k=20)
    )
    assert figures["accuracy"] > 80
    assert figures["classes"] == 10
    assert figures["accuracy"] * 4 == pytest.approx(round(figures["accuracy"] * 4))  # of 400 images
    assert encoder.training


def test_bad_settings_are_errors(features):
    with pytest.raises(InputError, match="k=601 neighbours of 600 training samples"):
        score(*features, KnnConfig(k=601))
    for bad in ({"k": 0}, {"temperature": 0.0}, {"tile": -1}):
        with pytest.raises(InputError, match=next(iter(bad))):
            KnnConfig(**bad)
