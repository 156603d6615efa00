"""The commands on a trained run: their output, drawings and files."""

import json
from pathlib import Path
from typing import Any

import pytest

from intnacl.evaluation import robustness
from intnacl.runs.commands import EPS_CURVE, OWN_CURVE, attack_command, knn_command, probe_command
from intnacl.runs.folder import RunFolder
from intnacl.runs.measurement import Measurement
from intnacl.runs.opened import open_run
from intnacl.runs.pretrain import pretrain
from intnacl.runs.stages import train_and_measure
from intnacl.training.stop import Stop
from mistakes import must_refuse, refused
from tiny_run import HERE, config, measured, trained, write_images


def test_probe_takes_several_data_sets_and_protocols(tmp_path):
    folder = trained(tmp_path, root=str(tmp_path)).folder
    parts = probe_command(folder, ("digits", write_images(tmp_path / "images")), "run", {}, "cpu")
    assert [part.figures["classes"] for part in parts] == [10, 2]

    def probed(protocol: str, **changes: object) -> Measurement:
        given = {f"probe.{name}": value for name, value in changes.items()}
        (part,) = probe_command(folder, (), protocol, given, "cpu")
        return part

    assert probed("quick").settings["probe"]["solver"] == "lbfgs"
    assert len(probed("run", epochs=3).figures["curve"]) == 3
    clae = probed("clae", epochs=2)
    assert [clae.settings["probe"][name] for name in ("lr", "batch_size", "normalize")] == [3e-4, 256, False]
    assert len(clae.figures["curve"]) == 2
    assert len(probed("clae").figures["curve"]) == 20  # the run's: 200 on TinyImageNet, 1000 elsewhere
    assert probed("hcl", epochs=1).kind == "hcl_probe"
    other = probed("run", solver="lbfgs", max_iter="7", l2="1e-2")
    assert [other.settings["probe"][name] for name in ("solver", "max_iter", "l2")] == ["lbfgs", 7, 0.01]
    for protocol, changes, told in (
        ("hcl", {"probe.epochs": 0}, "epochs=0 must be a whole number from 1 to"),
        ("quick", {"probe.epochs": 3}, r"probe\.epochs=3 is a setting of Adam, but this probe uses L-BFGS"),
        ("hcl", {"probe.lr": 1.0}, r"probe\.lr is fixed by --protocol hcl"),
        ("run", {"train.lr": 1.0}, r"setting of the probe='train\.lr' is unknown\. Choose"),
        ("slow", {}, "protocol='slow' is unknown"),
    ):
        must_refuse(probe_command, folder, (), protocol, changes, "cpu", told)


def test_knn_prints_its_accuracy(tmp_path, capsys):
    (part,) = knn_command(trained(tmp_path).folder, (), 7, "exp", "cpu")
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "knn digits …"
    assert last.split() == ["digits", "7", f"{part.figures['accuracy']:.2f}"]
    must_refuse(
        knn_command, trained(tmp_path / "other").folder, (), 2000, "exp", "cpu", "k=2000 neighbours of 1442"
    )


def test_a_measurement_on_other_images_warns_about_what_the_result_leaves_out(tmp_path, capsys):
    name = write_images(tmp_path / "images")
    settings = {"dataset": name, "size": 8, "train.batch_size": 4, "encoder.name": "small"}
    assert train_and_measure(config(**settings), RunFolder(tmp_path / "run"), HERE, Stop()) is None
    (tmp_path / "images" / "test" / "cat" / "0.png").unlink()
    capsys.readouterr()
    knn_command(tmp_path / "run", [], 3, "exp", "cpu")
    assert f"warning: {name}: measurements on other images" in capsys.readouterr().out
    before = json.loads((tmp_path / "run" / "result.json").read_text())
    assert any("other images" in warning for warning in before["warnings"])
    probe_command(tmp_path / "run", [], "run", {}, "cpu")
    assert "warning: result.json was not updated" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == before
    assert train_and_measure(config(**settings), RunFolder(tmp_path / "run"), HERE, Stop()) is None
    after = json.loads((tmp_path / "run" / "result.json").read_text())
    assert after["protocol"]["images"][name] == {"train": 12, "test": 11}
    assert not any("other images" in warning for warning in after["warnings"])


def test_attack_fits_the_probe_first_and_draws(tmp_path, capsys):
    folder = trained(tmp_path).folder
    attack_command(folder, (), (0.1, 0.02), ("fgsm", "pgd"), 32, "cpu")
    text = capsys.readouterr().out
    assert "32" in text
    assert text.startswith("fgsm, pgd digits at eps 0.02 …\nfgsm, pgd digits at eps 0.1 …\n")
    for name in ("probe-digits.safetensors", "robustness-digits.png", "examples-digits.png"):
        assert (folder / name).stat().st_size > 1000
    assert len(list((folder / "parts").glob("attack-*"))) == 4
    attack_command(folder, (), (0.03, 0.04), ("fgsm",), 32, "cpu")
    assert len(list((folder / "parts").glob("attack-*"))) == 6


def test_the_default_radii_on_own_images_are_around_the_usual_one(tmp_path):
    own = {"dataset": write_images(tmp_path / "images"), "size": 8, "train.batch_size": 6}
    for name, settings, radii in (("own", own, OWN_CURVE), ("digits", {}, EPS_CURVE)):
        run = config(**settings | {"train.epochs": 1, "encoder.name": "small"})
        assert pretrain(run, RunFolder(tmp_path / name), HERE, Stop()) is None
        attack_command(tmp_path / name, (), (), ("fgsm",), 4, "cpu")
        found = open_run(tmp_path / name).measurements.all("attack")
        assert {one.settings["attacks"][0]["eps"] for one in found} == set(radii)
    assert 8 / 255 in OWN_CURVE


def test_a_rise_from_one_eps_to_another_is_warned_about(tmp_path, monkeypatch, capsys):
    real = robustness.along

    def weaker_above(x: Any, sign: Any, eps: float, **options: Any) -> Any:
        return real(x, sign, eps if eps < 0.05 else 0.0, **options)

    monkeypatch.setattr(robustness, "along", weaker_above)
    folder = measured(tmp_path).folder
    attack_command(folder, (), (0.04, 0.06), ("fgsm", "pgd"), 32, "cpu")
    assert "warning: fgsm: accuracy rises with eps, from " in capsys.readouterr().out
    warnings = json.loads((folder / "result.json").read_text())["warnings"]
    assert [text for text in warnings if text.startswith("digits: fgsm: accuracy rises with eps")]
    assert "fgsm: accuracy rises with eps" in (folder / "report.html").read_text()


test_mistakes_are_named_before_any_work = refused(
    lambda eps, attacks: attack_command(Path("no run yet"), (), eps, attacks, "exp", "cpu"),
    ((2.0,), ("fgsm",), "out of range"),
    ((0.1,), ("nothing",), "attack='nothing'"),
    ((0.1,), (), "no attack"),
)


@pytest.mark.parametrize(
    "name", ["probe-digits.safetensors", "probe-digits.png", "result.json", "report.html"]
)
def test_a_file_that_cannot_be_written_is_named(tmp_path, name):
    folder = measured(tmp_path).folder
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    must_refuse(probe_command, folder, (), "run", {}, "cpu", f"{name} could not be written: Is a directory")


def test_a_relative_path_is_measured_and_stored_as_an_absolute_one(tmp_path, monkeypatch):
    run = trained(tmp_path)
    name = write_images(tmp_path / "pets")
    monkeypatch.chdir(tmp_path)
    (part,) = knn_command(run.folder.path, ["folder:pets"], 1, "exp", "cpu")
    assert part.settings["dataset"] == name
