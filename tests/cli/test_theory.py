"""`nca` and `bounds` as a user calls them."""

import json

import pytest

from intnacl.cli import app
from mistakes import must_refuse, refused

HEADINGS = ("n = 1024", "mean Δ", "Theorem B.1", "Theorems B.4 and 3.1: constants are unknown")


@pytest.mark.parametrize(
    ("command", "shown", "drawing"),
    [
        ("nca --dataset wine", ("NCA, scikit-learn",), "draw_spaces"),
        ("bounds --draws 100", HEADINGS, "draw_bounds"),
    ],
)
def test_figures_are_printed_and_drawn_and_printed_even_if_drawing_fails(
    command, shown, drawing, tmp_path, monkeypatch, capsys
):
    words = [*command.split(), "--out", str(tmp_path)]
    app(words, result_action="return_value")
    printed, name = capsys.readouterr().out, words[0]
    assert all(heading in printed for heading in shown)
    found = json.loads((tmp_path / f"{name}.json").read_text())
    if name == "nca":
        assert found["spaces"]["NCA, total variation"]["1-NN"] >= found["spaces"]["NCA, scikit-learn"]["1-NN"]
    else:
        assert found["config"]["draws"] == 100
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000

    def _fail(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(f"intnacl.plots.theory.{drawing}", _fail)
    with pytest.raises(PermissionError):
        app(words)
    assert shown[-1] in capsys.readouterr().out


test_bounds_names_a_number_out_of_range = refused(
    lambda flag, value: app(["bounds", flag, value]),
    ("--classes", "1", "^classes=1"),
    ("--delta", "1.5", r"^delta=1\.5"),
    ("--spread", "nan", "^spread=nan"),
    ("--seed", str(2**64), f"^seed={2**64} must lie in"),
)


@pytest.mark.parametrize("command", ["nca", "bounds"])
def test_an_out_that_is_not_a_folder_is_named_before_anything_is_measured(command, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr("intnacl.theory.comparison.learn_spaces", lambda *_: pytest.fail("measured first"))
    monkeypatch.setattr("intnacl.theory.sweep.sweep", lambda *_: pytest.fail("measured first"))
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        must_refuse(app, [command, "--out", str(out)], f"{out} could not be written")
