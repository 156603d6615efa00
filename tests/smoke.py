"""A smoke test of an installation, without pytest or a network: PYTHON tests/smoke.py, in an empty folder.

tests/test_release.py runs it on a wheel that it builds; CI also runs it with the oldest and the newest torch.
"""

import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import torch

import intnacl
from intnacl.cli import app


def refuse(*_: object) -> None:
    raise OSError("the smoke test has no network")


def command(*words: str) -> None:
    """Run a command that must succeed."""
    try:
        app(words, result_action="return_value")
    except SystemExit as end:
        if end.code:
            raise


def main() -> None:
    checkout = Path(__file__).parents[1]
    package = Path(intnacl.__file__).parent
    assert not package.is_relative_to(checkout), f"{package} is not installed"
    before = {file: file.stat().st_mtime_ns for file in package.rglob("*") if "__pycache__" not in file.parts}
    socket.socket.connect = refuse

    pixels = torch.rand(4, 3, 8, 8)
    for name in intnacl.pretrained():
        encoder = intnacl.from_pretrained(name)
        with torch.no_grad():
            side = encoder.image_size
            assert encoder(torch.rand(2, 3, side, side)).shape == (2, encoder.feature_dim)
    run = intnacl.open_run("digits-intnacl", device="cpu")
    test = run.images.labelled("digits").queries
    predicted = run.classifier("digits")(test.images / 255).argmax(1)
    accuracy = 100 * float((predicted == test.labels).float().mean())
    assert abs(accuracy - run.result["accuracy"]["digits"]["clean"]) < 0.5, accuracy

    script = Path(sys.executable).with_name("intnacl")
    assert "attack" in subprocess.run([script, "--help"], capture_output=True, text=True, check=True).stdout
    command("run", "--preset", "intnacl", "--epochs", "1", "--device", "cpu", "--out", "run")
    trained = intnacl.from_pretrained("run")
    with torch.no_grad():
        assert trained(pixels).shape == (4, 128)
    place = ("--device", "cpu", "--out", "attacked")
    command("attack", "digits-intnacl", "--eps", "0.03", "--attacks", "fgsm", *place)
    assert Path("run/report.html").exists()
    assert Path("attacked/result.json").exists()

    after = {file: file.stat().st_mtime_ns for file in package.rglob("*") if "__pycache__" not in file.parts}
    assert after == before, "something was written into the package"
    print(f"intnacl {version('intnacl')} with torch {torch.__version__}: the smoke test passed")


if __name__ == "__main__":
    main()
