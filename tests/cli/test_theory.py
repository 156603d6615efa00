"""`nca` and `bounds` as a user meets them."""

import json
from pathlib import Path

from command_line import intnacl


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
    assert json.loads((tmp_path / "bounds.json").read_text())["config"]["draws"] == 100
    assert (tmp_path / "bounds.png").stat().st_size > 10_000


def test_bounds_ends_a_mistake_in_one_line() -> None:
    result = intnacl("bounds", "--classes", "1")
    assert result.returncode == 2
    assert result.stderr.startswith("intnacl: classes=1")
    assert "Traceback" not in result.stderr
