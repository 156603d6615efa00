"""Entry points of torch.hub: `torch.hub.load(PATH, "digits_intnacl", source="local")`; PATH is this folder.

Each entry point returns an encoder in eval mode: pixels in [0, 1] of shape (N, 3, H, W) to features (N, F).
"""

import sys
from pathlib import Path

from torch import nn

dependencies = ["torch", "numpy", "safetensors", "filelock"]

sys.path.insert(0, str(Path(__file__).parent / "src"))  # intnacl of this folder, installed or not


def digits_intnacl() -> nn.Module:
    """Return the encoder that `intnacl run` trains on 8×8 digits with IntNaCl: 128 features."""
    from intnacl import from_pretrained

    return from_pretrained("digits-intnacl")
