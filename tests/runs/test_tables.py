"""Tables on the console."""

import json
from pathlib import Path

import pytest

from intnacl.console import two_decimals
from intnacl.runs import run
from intnacl.runs.config import to_dict
from intnacl.runs.probes import run_probe
from intnacl.runs.tables import print_attacks, print_probes, print_result
from intnacl.training.stop import Stop
from tiny_run import HERE, config, measured, trained


def test_fgsm_alone_is_not_called_a_worst_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = measured(tmp_path).folder
    result = json.loads((folder / "result.json").read_text())
    row = next(row for row in result["attacks"] if row["name"] == "worst_case")
    result["attacks"].append(row | {"eps": 0.5, "of": ["fgsm"], "accuracy": 3.21})
    (folder / "result.json").write_text(json.dumps(result))
    print_result(folder)
    assert "3.21" not in capsys.readouterr().out


def test_the_table_of_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = measured(tmp_path).folder
    print_result(folder)
    text = capsys.readouterr().out
    figures = json.loads((folder / "result.json").read_text())
    row = figures["accuracy"]["digits"]
    line = next(line for line in text.splitlines() if line.startswith("digits "))
    assert line.split() == ["digits", *(f"{row[key]:.2f}" for key in ("clean", "fgsm", "pgd"))]
    assert "attacks at eps 0.02" in text
    assert "worst case" in text
    assert str(folder / "report.html") in text.replace("\n", "")


def test_a_run_without_radii_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trained(tmp_path).folder
    settings = config(**{"evaluation.eps": ()})
    (folder / "config.json").write_text(json.dumps(to_dict(settings)))
    assert run(settings, folder, HERE, Stop()) is None
    print_result(folder)
    text = capsys.readouterr().out
    assert "accuracy in percent\n" in text
    assert next(line for line in text.splitlines() if line.startswith("digits ")).split()[2:] == ["–", "–"]


def test_attacks_are_rows_and_eps_columns(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"name": name, "eps": eps, "images": 8, "accuracy": accuracy, "clean": 95.0}
        for name, eps, accuracy in (("pgd_tuned", 0.1, 10.0), ("pgd_tuned", 0.02, 90.0), ("fgsm", 0.1, 20.0))
    ]
    print_attacks("digits", rows)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["attack", "images", "0.02", "0.1"] in lines
    assert ["PGD", "tuned", "8", "90.00", "10.00"] in lines
    assert ["FGSM", "8", "–", "20.00"] in lines
    assert ["none", "8", "95.00", "95.00"] in lines


def test_attacks_on_the_same_images_stand_together_below_their_clean_accuracy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = {"name": "fgsm", "eps": 0.1, "accuracy": 20.0}
    all_of_them, some = {"images": 1000, "clean": 90.0}, {"images": 8, "clean": 95.0}
    print_attacks("digits", [row | some, row | all_of_them, row | some | {"name": "pgd"}])
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[3:]]
    assert lines == [["none", "1,000"], ["FGSM", "1,000"], ["none", "8"], ["FGSM", "8"], ["PGD", "8"]]


def test_of_worst_cases_over_other_attacks_the_lowest_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"name": "worst_case", "eps": 0.1, "images": 8, "clean": 95.0}
    print_attacks("digits", [row | {"accuracy": accuracy} for accuracy in (30.0, 10.0, 20.0)])
    assert ["worst", "case", "8", "10.00"] in [line.split() for line in capsys.readouterr().out.splitlines()]


def test_probes_show_the_last_and_the_best_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = run_probe(measured(tmp_path), "digits")
    print_probes([part])
    line = capsys.readouterr().out.splitlines()[-1].split()
    assert line[:4] == [
        "digits",
        "355",
        two_decimals(part.figures["accuracy"]),
        two_decimals(part.figures["best_accuracy"]),
    ]


def test_attacks_on_some_images_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = measured(tmp_path).folder
    result = json.loads((folder / "result.json").read_text())
    tested = result["protocol"]["images"]["digits"]["test"]
    for images, said in ((None, False), (tested, False), (7, True)):
        result["config"]["evaluation"]["images"] = images
        (folder / "result.json").write_text(json.dumps(result))
        print_result(folder)
        assert ("attacks at eps 0.02 on 7 images" in capsys.readouterr().out) == said


def test_an_attack_that_has_no_column_has_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = measured(tmp_path).folder
    result = json.loads((folder / "result.json").read_text())
    row = next(row for row in result["attacks"] if row["name"] == "fgsm")
    for attacks, shown_there in ([row], False), ([row | {"name": "pgd_tuned", "accuracy": 12.34}], True):
        (folder / "result.json").write_text(json.dumps(result | {"attacks": attacks}))
        print_result(folder)
        assert ("12.34" in capsys.readouterr().out) == shown_there
