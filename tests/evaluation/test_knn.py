"""kNN against scikit-learn, against a loop, and at its limits."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from digits_model import digits, trained_model
from intnacl.data.datasets import Dataset
from intnacl.errors import InputError
from intnacl.evaluation.features import extract
from intnacl.evaluation.knn import KnnConfig, KnnMonitor, evaluate, predict, score, suited
from mistakes import must_refuse


@pytest.fixture
def features():
    images, labels = digits()
    features = extract(trained_model()[0], images[::2])
    return features[:600], labels[::2][:600], features[600:], labels[::2][600:]


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.1), (20, 0.1), (200, 0.07)])
def test_knn_is_scikit_learns(features, k, temperature):
    train, labels, test, _ = (item.double().numpy() for item in features)
    options = {"metric": "cosine", "algorithm": "brute", "weights": lambda d: np.exp(-d / temperature)}
    theirs = KNeighborsClassifier(k, **options).fit(train, labels).predict(test)
    ours = predict(*features[:3], KnnConfig(k=k, temperature=temperature), classes=10)
    assert (ours.numpy() == theirs).mean() > 0.995


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


def test_the_monitor_sees_all_classes_of_a_sorted_set_and_as_many_neighbours_as_a_class_has_samples():
    for samples, classes, k in ((50_000, 100, 200), (1_000, 100, 10), (3, 5, 1)):
        assert suited(samples, classes).k == k
    labels = torch.arange(15_000) // 5_000
    images = torch.randint(256, (15_000, 3, 8, 8), dtype=torch.uint8)
    own = Dataset(name="own", split="train", images=images, labels=labels, classes=("a", "b", "c"))
    held, flatten = own.hold_out(3_000)[1], torch.nn.Flatten()
    monitor = KnnMonitor(own, held, torch.device("cpu"))
    assert monitor.held_out is not None
    assert (len(monitor.train[0]), len(monitor.held_out[0]), monitor.config.k) == (10_000, 2_000, 200)
    assert set(monitor.train[1].tolist()) == set(monitor.held_out[1].tolist()) == {0, 1, 2}
    figures = evaluate(flatten, monitor.train, monitor.held_out, monitor.config)
    assert monitor(flatten) == {"knn": figures["accuracy"]}


def test_without_held_out_images_each_training_image_is_classified_by_the_others():
    images, labels = (tensor[:60] for tensor in digits())
    own = Dataset(name="own", split="train", images=images, labels=labels, classes=tuple("0123456789"))
    monitor, x = KnnMonitor(own, None, torch.device("cpu")), images.flatten(1).float()
    others = [torch.arange(60) != i for i in range(60)]
    figures = [score(x[rest], labels[rest], x[~rest], labels[~rest], monitor.config) for rest in others]
    mean = sum(one["accuracy"] for one in figures) / 60
    assert monitor(torch.nn.Flatten()) == {"knn_train": pytest.approx(mean)}
    assert 20 < mean < 100


def test_bad_settings_and_features_are_errors(features):
    train, labels, test, test_labels = features
    with pytest.raises(InputError, match=r"nan or infinity.*diverged"):
        score(train, labels, torch.full_like(test, torch.nan), test_labels)
    must_refuse(score, *features, KnnConfig(k=601), "k=601 neighbours of 600 training samples")
    for bad in ({"k": 0}, {"temperature": 0.0}, {"tile": -1}):
        must_refuse(KnnConfig, next(iter(bad)), **bad)
