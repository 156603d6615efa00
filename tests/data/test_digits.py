"""The embedded digits: values, and a split that never changes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits as load_embedded

from intnacl.data.digits import in_test, load_digits
from intnacl.data.images import LoadRequest


def test_the_splits_divide_all_digits_in_three_equal_channels():
    train, test = (load_digits(LoadRequest(split=s, root=Path("nowhere"))) for s in ("train", "test"))
    everyone = torch.cat([train.images, test.images])[:, 0].flatten(1).double()
    ours = sorted(map(tuple, (everyone * 16 / 255).round().int().tolist()))
    assert ours == sorted(map(tuple, load_embedded().data.astype(int).tolist()))
    assert (len(train.images), len(test.images)) == (1442, 355)
    share = test.labels.bincount() / (train.labels.bincount() + test.labels.bincount())
    assert (share - 0.2).abs().max() < 0.01  # the split is stratified
    labels = torch.tensor([0, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0])  # every fifth of a class is for testing
    assert in_test(labels).nonzero().flatten().tolist() == [5, 9]
    assert train.images.shape == (1442, 3, 8, 8)
    assert train.images.unique().tolist() == np.rint(np.arange(17) * 255 / 16).astype(int).tolist()
    assert torch.equal(train.images[:, 0], train.images[:, 2])


def test_digits_are_read_without_importing_scikit_learn(monkeypatch):
    code = "import sys, intnacl.data; intnacl.data.load('digits'); print('sklearn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
    request = LoadRequest(split="test", root=Path("nowhere"))
    own = load_digits(request)
    monkeypatch.setattr(Path, "exists", lambda file: False)  # as if a later scikit-learn had moved its file
    other = load_digits(request)
    assert torch.equal(own.images, other.images)
    assert torch.equal(own.labels, other.labels)
