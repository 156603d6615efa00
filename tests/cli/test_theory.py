"""`nca` and `bounds` as a user meets them."""

import json
from pathlib import Path

import pytest

from command_line import intnacl
from intnacl.cli import app
from intnacl.errors import InputError


def test_nca_prints_accuracies_and_draws(tmp_path: Path) -> None:
    result = intnacl("nca", "--dataset", "wine", "--out", str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert "NCA, scikit-learn" in result.stdout
    figures = json.loads((tmp_path / "nca.json").read_text())["spaces"]
    assert figures["NCA, total variation"]["1-NN"] >= figures["NCA, scikit-learn"]["1-NN"]
    assert (tmp_path / "nca.png").stat().st_size > 10_000


def test_bounds_prints_deviations_and_draws(tmp_path: Path) -> None:
    result = intnacl("bounds", "--draws", "100", "--out", str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert "n = 1024" in result.stdout
    for heading in ("mean Δ", "Theorem B.1", "Theorems B.4 and 3.1: constants unknown"):
        assert heading in result.stdout
    assert json.loads((tmp_path / "bounds.json").read_text())["config"]["draws"] == 100
    assert (tmp_path / "bounds.png").stat().st_size > 10_000


@pytest.mark.parametrize("wrong", [("--delta", "1.5"), ("--spread", "nan")])
def test_bounds_names_a_number_out_of_range(wrong: tuple[str, str]) -> None:
    result = intnacl("bounds", *wrong)
    assert result.returncode == 2
    assert result.stderr.startswith(f"intnacl: {wrong[0][2:]}={wrong[1]}")


def test_bounds_ends_a_mistake_in_one_line() -> None:
    result = intnacl("bounds", "--classes", "1")
    assert result.returncode == 2
    assert result.stderr.startswith("intnacl: classes=1")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["nca", "bounds"])
def test_an_out_that_cannot_be_a_folder_is_named_before_anything_is_measured(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("intnacl.theory.comparison.learn_spaces", lambda *_: pytest.fail("measured first"))
    monkeypatch.setattr("intnacl.theory.sweep.sweep", lambda *_: pytest.fail("measured first"))
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match=f"{out} could not be written"):
            app([command, "--out", str(out)])


@pytest.mark.parametrize(
    ("command", "drawing", "shown"),
    [
        ("nca --dataset iris", "draw_spaces", "NCA, scikit-learn"),
        ("bounds --draws 100", "draw_bounds", "mean Δ"),
    ],
)
def test_what_was_measured_is_shown_where_it_cannot_be_written(
    command: str, drawing: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def _fail(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(f"intnacl.plots.theory.{drawing}", _fail)
    with pytest.raises(PermissionError):
        app([*command.split(), "--out", str(tmp_path)])
    assert shown in capsys.readouterr().out


def test_bounds_refuses_a_seed_that_no_generator_takes() -> None:
    with pytest.raises(InputError, match=f"seed={2**64} must lie in"):
        app(["bounds", "--seed", str(2**64)])
