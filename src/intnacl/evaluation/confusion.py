"""The confusion matrix of a classifier, and the accuracy of each class that follows from it.

    n_ij = number of test samples of class i that are classified as j
    accuracy of class i = 100 · n_ii / Σ_j n_ij,    balanced accuracy = their mean over the classes

Shapes: T test samples, C classes.
"""

from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

Confusion = list[list[int]]
"""A row for each true class, a column for each predicted one."""


class Confused(NamedTuple):
    """Samples of one class that are classified as another."""

    true: int
    predicted: int
    taken: int
    images: int
    """Samples of the true class."""


def confusion(predicted_T: Tensor, true_T: Tensor, classes: int) -> Confusion:
    """Count the samples of each true class by the class predicted."""
    cell_T = true_T.cpu() * classes + predicted_T.cpu()
    counts: Confusion = torch.bincount(cell_T, minlength=classes**2).view(classes, classes).tolist()
    return counts


def class_accuracies(counts: Confusion) -> list[float | None]:
    """Return the accuracy of each class in percent; None where it has no test samples."""
    return [100 * row[i] / images if (images := sum(row)) else None for i, row in enumerate(counts)]


def balanced_accuracy(counts: Confusion) -> float:
    """Return the mean accuracy, in percent, of the classes that have test samples."""
    return fmean(found for found in class_accuracies(counts) if found is not None)


def most_confused(counts: Confusion, limit: int) -> list[Confused]:
    """Return the pairs of classes with the most samples of the first classified as the second."""
    pairs = [
        Confused(i, j, count, sum(row))
        for i, row in enumerate(counts)
        for j, count in enumerate(row)
        if i != j and count
    ]
    return sorted(pairs, key=lambda pair: (-pair.taken, pair.images, pair.true, pair.predicted))[:limit]
