"""The bar shows on a terminal and stays silent elsewhere."""

import sys

import pytest
import torch
from torch import nn

from intnacl.console import progress, watched


def test_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("decoding", 3) as advance:
        advance(3)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == ""


@pytest.mark.parametrize("in_bytes", [False, True])
def test_counts_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, in_bytes: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("decoding [old]", 4, in_bytes=in_bytes) as advance:
        advance(1)
        advance(3)
    shown = capsys.readouterr().err
    assert "decoding [old]" in shown
    assert ("4/4 bytes" if in_bytes else "4/4") in shown


def test_watching_counts_the_images_of_each_pass_and_ends_with_the_block(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    layer = nn.Linear(2, 1)
    with watched(layer, "images", 8):
        layer(torch.zeros(5, 2))
        layer(torch.zeros(2, 2))
    layer(torch.zeros(1, 2))
    assert "7/8" in capsys.readouterr().err
    assert not layer._forward_hooks
