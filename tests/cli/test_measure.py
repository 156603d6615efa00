"""The commands on a trained run as a user calls them."""

import inspect
import json
from pathlib import Path

import pytest

from command_line import TINY, intnacl
from intnacl.cli import app
from intnacl.runs import commands
from tiny_run import trained, write_images


def done(*words: object) -> str:
    """Return the output of a command that succeeds."""
    result = intnacl(*words)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_one_run_from_the_command_line_to_an_export(tmp_path):
    out = tmp_path / "run"
    printed = done("run", "--preset", "simclr", "--device", "cpu", "--out", out, "--set", *TINY)
    accuracy = json.loads((out / "result.json").read_text())["accuracy"]["digits"]
    line = ["digits", *(f"{accuracy[key]:.2f}" for key in ("clean", "fgsm", "pgd"))]
    assert line in [text.split() for text in printed.splitlines()]
    assert (out / "report.html").exists()
    radii = ("--eps", "0.05", "8/255")
    assert "eps" in done("attack", out, *radii, "--attacks", "fgsm", "pgd", "--images", "16")
    rows = json.loads((out / "result.json").read_text())["attacks"]
    assert {(0.05, 16), (8 / 255, 16)} <= {(row["eps"], row["images"]) for row in rows}
    done("embed", out, "--split", "test", "--html", "--images", 20)
    written = {f"features-digits-test{suffix}" for suffix in (".npz", ".png", ".html")}
    assert written <= {path.name for path in out.iterdir()}
    printed = done("runs", tmp_path, "--filter", "clean>0", "--html")
    assert any({"run", "simclr", *line} <= set(text.split()) for text in printed.splitlines())
    assert (tmp_path / "runs.html").exists()
    exported = tmp_path / "exported"
    assert done("export", out, "--out", exported) == f"written: {exported / 'encoder.safetensors'}\n"


def test_a_radius_that_is_not_a_number_is_named():
    refused = intnacl("attack", "RUN", "--eps", "8/z")
    assert refused.returncode != 0
    assert "'8/z' is not a number such as 0.002, 1e-3 or 8/255" in refused.stdout + refused.stderr


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("probe", {"protocol": "quick"}),
        ("knn", {"k": 5, "weights": "uniform"}),
        ("attack", {"images": 7, "eps": (0.1,), "attacks": ("pgd",)}),
        ("embed", {"dataset": "digits", "split": "test", "out": Path("x.npz")}),
    ],
)
def test_flags_reach_the_body_of_the_command(command, flags, monkeypatch):
    name, calls = f"{command}_command", []
    signature = inspect.signature(getattr(commands, name))
    monkeypatch.setattr(commands, name, lambda *given: calls.append(signature.bind(*given).arguments))
    given = flags | {"device": "cpu", "root": Path("data")}
    words = [
        (f"--{flag}", str(value[0] if isinstance(value, tuple) else value)) for flag, value in given.items()
    ]
    app([command, "RUN", *(word for pair in words for word in pair)], result_action="return_value")
    assert given == {name: calls[0][name] for name in given}
    assert calls[0]["path"] == Path("RUN")


def test_a_share_of_labels_and_pictures_from_the_command_line(tmp_path):
    run, pictures = trained(tmp_path).folder.path, tmp_path / "test" / "cat"
    short = ("--epochs", "2", "--seed", "1", "--device", "cpu", "--set", "train.batch_size=48")
    printed = done("finetune", run, "--labels", "10%", *short)
    assert "from 10 % of the labels, 144 images" in printed
    out = Path(f"{run}-labels-10percent")
    result = json.loads((out / "result.json").read_text())
    assert (result["few_labels"]["seed"], result["few_labels"]["labels"]) == (1, 0.1)
    assert "linear probe, frozen encoder" in done("finetune", run, "--labels", "10%", *short)  # as it stands
    write_images(tmp_path)
    (pictures / "damaged.png").write_text("no picture")
    printed = done("predict", out, pictures, "--out", tmp_path / "p.csv", "--device", "cpu")
    assert "6 pictures classified, 1 left out as broken\n  damaged.png: UnidentifiedImageError" in printed
    head, *rows = (tmp_path / "p.csv").read_text().splitlines()
    assert head == "file,class,confidence"
    assert [row.split(",")[0] for row in rows] == [f"{number}.png" for number in range(6)]
    refused = intnacl("finetune", run, "--labels", "0.1")
    assert refused.returncode == 2
    assert "labels='0.1' is not a share of the labels" in refused.stderr


def test_flags_of_probe_are_settings_of_the_probe(monkeypatch):
    monkeypatch.setattr(commands, "probe_command", lambda *given: changes.append(given[3]))
    changes: list[dict[str, object]] = []
    words = ["--epochs", "3", "--batch-size", "64", "--lr", "0.1", "--set", "probe.l2=1", "probe.lr=0.2"]
    app(["probe", "RUN", *words], result_action="return_value")
    expected = {"probe.epochs": 3, "probe.batch_size": 64, "probe.lr": "0.2", "probe.l2": "1"}
    assert changes == [expected]
    assert "write --set probe.seed=…" in intnacl("probe", "RUN", "--seed", "1").stderr
