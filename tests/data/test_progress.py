"""The bar shows on a terminal and stays silent elsewhere."""

import sys

import pytest

from intnacl.data.progress import progress


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
    with progress("decoding", 4, in_bytes=in_bytes) as advance:
        advance(1)
        advance(3)
    shown = capsys.readouterr().err
    assert "decoding" in shown
    assert ("4/4 bytes" if in_bytes else "4/4") in shown
