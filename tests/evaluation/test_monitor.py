"""Quick figures of an encoder in training: their images, and that they equal the evaluators' figures."""

import pytest
import torch
from torch import Tensor, nn

from digits_model import digits
from intnacl.data.dataset import Dataset
from intnacl.evaluation.knn import evaluate, score, suited
from intnacl.evaluation.monitor import Monitor
from intnacl.evaluation.rankme import effective_rank

CPU = torch.device("cpu")


def own(images: Tensor, labels: Tensor | None, classes: int) -> Dataset:
    return Dataset(
        name="own", split="train", images=images, labels=labels, classes=tuple("0123456789"[:classes])
    )


def test_the_monitor_uses_all_classes_of_a_sorted_set_and_at_most_a_class_of_neighbours():
    for samples, classes, k in ((50_000, 100, 200), (1_000, 100, 10), (3, 5, 1)):
        assert suited(samples, classes).k == k
    images = torch.randint(256, (15_000, 3, 8, 8), dtype=torch.uint8)
    sorted_set = own(images, torch.arange(15_000) // 5_000, 3)
    held, flatten = sorted_set.hold_out(3_000)[1], nn.Flatten()
    monitor = Monitor(sorted_set, held, CPU, lambda features_TF: features_TF[:, :3])
    train = monitor.images, monitor.labels_N
    assert monitor.held_out is not None
    assert (len(train[0]), len(monitor.held_out[0]), monitor.config.k) == (10_000, 2_000, 200)
    assert set(train[1].tolist()) == set(monitor.held_out[1].tolist()) == {0, 1, 2}
    guess, features = monitor.held_out[0].flatten(1)[:, :3].argmax(1), train[0].flatten(1).float() / 255
    assert monitor(flatten) == {
        "knn": evaluate(flatten, train, monitor.held_out, monitor.config)["accuracy"],
        "probe": pytest.approx(100 * (guess == monitor.held_out[1]).float().mean().item()),
        "rankme": effective_rank(features),
    }


def test_without_held_out_images_each_training_image_is_classified_by_the_others():
    images, labels = (tensor[:60] for tensor in digits())
    monitor, x = Monitor(own(images, labels, 10), None, CPU), images.flatten(1).float()
    others = [torch.arange(60) != i for i in range(60)]
    figures = [score(x[rest], labels[rest], x[~rest], labels[~rest], monitor.config) for rest in others]
    found = monitor(nn.Flatten())
    assert found.keys() == {"knn_train", "rankme"}  # on training images alone, a probe would say little
    assert found["knn_train"] == pytest.approx(sum(one["accuracy"] for one in figures) / 60)
    assert 20 < found["knn_train"] < 100


def test_images_without_labels_have_only_a_rank():
    monitor = Monitor(own(digits()[0][:60], None, 0), None, CPU)
    assert monitor(nn.Flatten()).keys() == {"rankme"}


@pytest.mark.parametrize("shape", [(200, 8), (8, 200)])
def test_the_effective_rank_equals_the_papers_formula(shape):
    """Garrido et al. 2023, equations 1 and 2: by singular values, with 1e-7 beside each share."""
    torch.manual_seed(0)
    features = torch.randn(shape) * torch.logspace(0, -3, shape[1]) + 0.5
    sigma = torch.linalg.svdvals(features.double())
    p = sigma / sigma.sum() + 1e-7
    assert effective_rank(features) == pytest.approx(float((-p * p.log()).sum().exp()), rel=1e-4)


def test_the_effective_rank_at_its_limits():
    """All directions alike, one direction, none; and the scale of features does not matter."""
    assert effective_rank(torch.eye(6).repeat(3, 1)) == pytest.approx(6)
    assert effective_rank(torch.arange(1.0, 9)[:, None] * torch.rand(5)) == pytest.approx(1, abs=1e-4)
    assert effective_rank(torch.zeros(4, 3)) == 0
    features = torch.randn(50, 7)
    assert effective_rank(1e-6 * features) == pytest.approx(effective_rank(features), rel=1e-5)
