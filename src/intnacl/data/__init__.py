"""Images in: data sets, and the views that a training step sees of them."""

from intnacl.data.datasets import Dataset, load

__all__ = ["Dataset", "load"]
