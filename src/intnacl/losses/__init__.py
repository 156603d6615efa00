"""The losses: pure functions of similarities, and one module with settings. They import torch alone."""
