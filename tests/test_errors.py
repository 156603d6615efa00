"""Users' errors name the value, the choices and the remedy."""

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

ROOT = Path(__file__).parents[1]


def test_check_choice_passes_a_known_value() -> None:
    check_choice("negatives", "g0", ["g0", "g1"])


def test_check_choice_names_value_choices_and_nearest() -> None:
    with pytest.raises(InputError, match=r"preset='simcler'.*did you mean 'simclr'.*adv, simclr"):
        check_choice("preset", "simcler", ["simclr", "adv"])


def test_check_choice_finds_a_name_as_papers_write_it() -> None:
    with pytest.raises(InputError, match=r"preset='SimCLR' is unknown; did you mean 'simclr'\?"):
        check_choice("preset", "SimCLR", ["intnacl", "simclr"])
    with pytest.raises(InputError, match=r"did you mean 'NCA\(g2\), M = 5'\?"):
        check_choice("row", "nca(g2), m = 5", ["NCA(g0), M = 5", "NCA(g2), M = 5"])


def test_check_choice_without_a_nearest_ends_its_sentence() -> None:
    with pytest.raises(InputError, match=r"preset='x' is unknown\. Choose one of: adv, simclr\.$"):
        check_choice("preset", "x", ["simclr", "adv"])


def test_check_choice_lists_the_nearest_of_many() -> None:
    many = [f"setting{i}" for i in range(100)]
    with pytest.raises(InputError, match=r"did you mean 'setting\d+'\?.*, 97 more\.$") as caught:
        check_choice("setting", "setting7x", many)
    assert len(str(caught.value)) < 150


def test_check_choice_lists_some_of_many_and_quotes_names_with_commas() -> None:
    many = ["A, M = 1", *(f"row{i:02}" for i in range(29))]
    with pytest.raises(InputError, match=r"Choose one of: 'A, M = 1', row00, row01.*row18, 10 more\.$"):
        check_choice("row", "zzz", many)


@pytest.mark.parametrize("value", [-1, 2**31, 10**30])
def test_check_count_names_value_and_range(value: int) -> None:
    with pytest.raises(
        InputError, match=rf"epochs={value} must be a whole number from 0 to 2,147,483,647\.$"
    ):
        check_count("epochs", value, 0)
    check_count("epochs", 0, 0)
    check_count("epochs", 2**31 - 1)


@pytest.mark.parametrize("value", [-1e-9, 1e39, math.inf, math.nan])
def test_check_number_names_value_and_range(value: float) -> None:
    with pytest.raises(InputError, match=rf"lr={re.escape(repr(value))} must be a number from 0 to 3e38\.$"):
        check_number("lr", value)
    check_number("lr", 0.0)
    check_number("lr", 3e38)


def test_check_number_may_refuse_zero() -> None:
    with pytest.raises(InputError, match=r"lr=0\.0 must be a number above 0, up to 3e38\.$"):
        check_number("lr", 0.0, zero=False)
    check_number("lr", 1e-30, zero=False)


FROM_A_COPY = """
import sys
sys.path.insert(0, sys.argv[1])
from intnacl.errors import missing_extra
print(missing_extra("timm", "timm", "this"))
"""


def test_a_missing_extra_is_installed_from_where_the_package_came(tmp_path: Path) -> None:
    """From a checkout, from the place that pip noted of an installed copy, or from one that is not known."""
    error = missing_extra("onnx and onnxruntime", "onnx", "--format onnx")
    assert str(error) == f"--format onnx needs onnx and onnxruntime: pip install '{ROOT}[onnx]'"
    copy, facts = (
        tmp_path / "lib" / "site-packages",
        tmp_path / "lib" / "site-packages" / "intnacl-1.dist-info",
    )
    shutil.copytree(ROOT / "src" / "intnacl", copy / "intnacl")
    facts.mkdir()
    (facts / "METADATA").write_text("Name: intnacl\nVersion: 1\n")
    git = {"url": "https://host/repo.git", "vcs_info": {"vcs": "git"}}
    for origin, remedy in (
        ({"url": "file:///some/where%20else", "dir_info": {}}, "'/some/where else[timm]'"),
        (git, "'intnacl[timm] @ git+https://host/repo.git'"),
        ({}, "'PATH[timm]', with the path of intnacl's checkout"),
    ):
        (facts / "direct_url.json").write_text(json.dumps(origin))
        words = [sys.executable, "-c", FROM_A_COPY, str(copy)]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        assert said == f"this needs timm: pip install {remedy}\n"


def test_the_version_stands_in_one_place() -> None:
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
def test_messages_show_names_without_what_a_terminal_would_act_on(name: str, shown: str) -> None:
    assert printable(name) == str(InputError(name)) == str(InputWarning(name)) == shown
    several = pickle.loads(pickle.dumps(InputError(f"{name}:", "  second")))
    assert str(several) == f"{shown}:\n  second"
