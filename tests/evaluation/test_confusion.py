"""The confusion matrix against scikit-learn's, and what is derived from it."""

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, recall_score

from intnacl.evaluation.confusion import balanced_accuracy, class_accuracies, confusion, most_confused


def test_the_matrix_and_its_figures_equal_scikit_learns():
    generator = torch.Generator().manual_seed(0)
    true, predicted = (torch.randint(5, (300,), generator=generator) for _ in range(2))
    predicted[:200] = true[:200]
    counts = confusion(predicted, true, 5)
    assert counts == confusion_matrix(true, predicted).tolist()
    assert class_accuracies(counts) == pytest.approx(100 * recall_score(true, predicted, average=None))
    assert balanced_accuracy(counts) == pytest.approx(100 * balanced_accuracy_score(true, predicted))


def test_a_class_without_samples_has_no_accuracy_and_does_not_count():
    counts = confusion(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 0, 2, 2]), 3)
    assert class_accuracies(counts) == [50.0, None, 100.0]
    assert balanced_accuracy(counts) == 75.0
    assert most_confused(counts, 9) == [(0, 1, 1, 2)]
    assert most_confused(confusion(torch.tensor([0, 1]), torch.tensor([0, 1]), 2), 9) == []
