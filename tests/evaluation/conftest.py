"""The classifier and the digits that the evaluators are tested on."""

from copy import deepcopy

import pytest

from digits_model import digits, trained_model


@pytest.fixture
def model():
    return deepcopy(trained_model())


@pytest.fixture
def encoder(model):
    return model[0]


@pytest.fixture
def data():
    """1,397 images to train on, as the classifier was, and 400 to test on, each with its labels."""
    images, labels = digits()
    return (images[:1397], labels[:1397]), (images[1397:], labels[1397:])
