"""Errors for users name the value, the choices and the remedy."""

import json
import math
import pickle
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from intnacl.errors import (
    InputError,
    InputWarning,
    check_choice,
    check_count,
    check_number,
    missing_extra,
    printable,
)
from mistakes import refused

ROOT = Path(__file__).parents[1]


MANY, ROWS = [f"setting{i}" for i in range(100)], ["A, M = 1", *(f"row{i:02}" for i in range(29))]
test_an_unknown_choice_is_named_with_the_nearest_and_other_choices = refused(
    check_choice,
    ("preset", "simcler", ["simclr", "adv"], r"preset='simcler'.*did you mean 'simclr'.*adv, simclr"),
    ("preset", "SimCLR", ["intnacl", "simclr"], r"preset='SimCLR' is unknown; did you mean 'simclr'\?"),
    ("row", "nca(g2), m = 5", ["NCA(g0), M = 5", "NCA(g2), M = 5"], r"did you mean 'NCA\(g2\), M = 5'\?"),
    ("preset", "x", ["simclr", "adv"], r"preset='x' is unknown\. Choose one of: adv, simclr\.$"),
    ("setting", "setting7x", MANY, r"^.{,50}did you mean 'setting\d+'\?.{,60}, 97 more\.$"),
    ("row", "zzz", ROWS, r"Choose one of: 'A, M = 1', row00, row01.*row18, 10 more\.$"),
)
test_a_count_is_named_with_its_range = refused(
    lambda value: check_count("epochs", value, 0),
    *((n, rf"epochs={n} must be a whole number from 0 to 2,147,483,647\.$") for n in (-1, 2**31, 10**30)),
)
test_a_number_is_named_with_its_range = refused(
    lambda value, zero: check_number("lr", value, zero=zero),
    *(
        (value, True, rf"lr={re.escape(repr(value))} must be a number from 0 to 3e38\.$")
        for value in (-1e-9, 1e39, math.inf, math.nan)
    ),
    (0.0, False, r"lr=0\.0 must be a number above 0, up to 3e38\.$"),
)


def test_valid_choices_counts_and_numbers_pass():
    check_choice("negatives", "g0", ["g0", "g1"])
    check_count("epochs", 0, 0)
    check_count("epochs", 2**31 - 1)
    for value in (0.0, 3e38):
        check_number("lr", value)
    check_number("lr", 1e-30, zero=False)


FROM_A_COPY = """
import sys
sys.path.insert(0, sys.argv[1])
from intnacl.errors import missing_extra
print(missing_extra("timm", "timm", "this"))
"""


def test_a_missing_extra_is_installed_from_the_origin_of_the_package(tmp_path):
    """From a checkout, from the origin that pip noted for an installed copy, or from an unknown origin."""
    error = missing_extra("onnx and onnxruntime", "onnx", "--format onnx")
    assert str(error) == f"--format onnx needs onnx and onnxruntime: pip install '{ROOT}[onnx]'"
    copy = tmp_path / "lib" / "site-packages"
    facts = copy / "intnacl-1.dist-info"
    shutil.copytree(ROOT / "src" / "intnacl", copy / "intnacl")
    facts.mkdir()
    (facts / "METADATA").write_text("Name: intnacl\nVersion: 1\n")
    git = {"url": "https://host/repo.git", "vcs_info": {"vcs": "git"}}
    for origin, remedy in (
        ({"url": "file:///some/where%20else", "dir_info": {}}, "'/some/where else[timm]'"),
        (git, "'intnacl[timm] @ git+https://host/repo.git'"),
        ({}, "'PATH[timm]', where PATH is the path of intnacl's checkout"),
    ):
        (facts / "direct_url.json").write_text(json.dumps(origin))
        words = [sys.executable, "-c", FROM_A_COPY, str(copy)]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        assert said == f"this needs timm: pip install {remedy}\n"


def test_the_version_is_defined_once():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "intnacl.__version__"}


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\x1b[31mb\n.png", r"a\x1b[31mb\n.png"),
        ("\udcff.png", r"\xff.png"),
        ("\ud800\0\x9b", r"\ud800\x00\x9b"),
        ("é 猫 \U0001f408", "é 猫 \U0001f408"),
    ],
)
def test_messages_escape_control_characters_in_names(name, shown):
    assert printable(name) == str(InputError(name)) == str(InputWarning(name)) == shown
    several = pickle.loads(pickle.dumps(InputError(f"{name}:", "  second")))
    assert str(several) == f"{shown}:\n  second"
