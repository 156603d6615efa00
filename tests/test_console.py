"""Progress bars, tables and warnings on the terminal."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from intnacl.console import print_table, print_warnings, progress, two_decimals, watched


@pytest.mark.parametrize("in_bytes", [False, True])
def test_progress_is_only_shown_on_a_terminal(capsys, monkeypatch, in_bytes):
    with progress("decoding", 3) as advance:
        advance(3)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("decoding [old]", 4, in_bytes=in_bytes) as advance:
        advance(1)
        advance(3)
    shown = capsys.readouterr().err
    assert "decoding [old]" in shown
    assert ("4/4 bytes" if in_bytes else "4/4") in shown


def test_watching_counts_the_images_of_each_pass_and_ends_with_the_block(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    layer = nn.Linear(2, 1)
    with watched(layer, "images", 8):
        for count in (5, 2):
            layer(torch.zeros(count, 2))
    layer(torch.zeros(1, 2))
    assert "7/8" in capsys.readouterr().err
    assert not layer._forward_hooks


def test_tables_align_numbers_and_fold_long_names(capsys, monkeypatch):
    print_table("accuracy", ["data set", "[clean]"], [["folder:/data/[old]", two_decimals(9.1)], ["b", "–"]])
    assert capsys.readouterr().out == (
        "\naccuracy\ndata set            [clean]\nfolder:/data/[old]     9.10\nb                         –\n"
    )
    print_table("", ["name", "files"], [["digits", "none"]], text=2)
    assert capsys.readouterr().out == "name    files\ndigits  none \n"
    monkeypatch.setenv("COLUMNS", "60")
    names = [f"folder:/a/rather/long/path/to/the/images/of/version-{i}" for i in (1, 2)]
    print_table("t", ["data set", "clean", "FGSM", "PGD"], [[name, "97.18", "1", "2"] for name in names])
    column = "".join(line.split("  ")[0].strip() for line in capsys.readouterr().out.splitlines())
    assert all(name in column for name in names)


def test_warnings_and_missing_figures(capsys):
    print_warnings(["a", "b", "a"])
    assert capsys.readouterr().out == "warning: a\nwarning: b\n"
    assert two_decimals(None) == "–"


WARNINGS = """
import warnings
from intnacl.console import show_warnings_once
from intnacl.errors import InputWarning
show_warnings_once()
warnings.warn("2 are broken", InputWarning)
warnings.warn("2 are broken", InputWarning)
with warnings.catch_warnings():  # as libraries do; Python then forgets what it has shown
    warnings.simplefilter("ignore")
warnings.warn("2 are broken", InputWarning)
warnings.warn_explicit("2 are broken", InputWarning, "another.py", 1, registry={})
warnings.warn("3 are broken", InputWarning)
warnings.warn_explicit("old", FutureWarning, "a.py", 3)
warnings.warn("Glyph 22270 (CJK) missing from font(s) DejaVu Sans.")
"""


def test_each_warning_is_shown_once_and_warnings_about_fonts_are_hidden():
    result = subprocess.run(
        [sys.executable, "-c", WARNINGS], capture_output=True, text=True, check=True, timeout=120
    )
    assert result.stderr == (
        "intnacl: warning: 2 are broken\nintnacl: warning: 3 are broken\na.py:3: FutureWarning: old\n"
    )
