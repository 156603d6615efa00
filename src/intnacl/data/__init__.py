"""Images: data sets, and the views of them that a training step gets."""

from intnacl.data.dataset import Dataset
from intnacl.data.datasets import load

__all__ = ["Dataset", "load"]
