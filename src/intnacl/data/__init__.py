"""Images in: data sets, and the views that a training step sees of them."""

from intnacl.data.dataset import Dataset
from intnacl.data.datasets import load

__all__ = ["Dataset", "load"]
