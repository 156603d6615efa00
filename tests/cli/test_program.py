"""The program: its help is fast, and its errors are clear."""

import errno
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import exit_code, intnacl
from intnacl.cli import app, main, program
from intnacl.errors import InputError, LostRankError
from tiny_run import write_images

FULL = "out of memory: lower the batch size, or use a machine with more memory."
COMMANDS = [name for name in app if not name.startswith("-")]


def python(code: str) -> None:
    """Run code in a new process, and check that it succeeds."""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_help_names_the_program_and_every_command():
    text = intnacl("--help").stdout
    assert "Usage: intnacl COMMAND" in text
    assert len(COMMANDS) == 18
    assert all(f"│ {command} " in text for command in COMMANDS)


@pytest.mark.parametrize("command", [*COMMANDS, "datasets show"])
def test_every_command_has_help_with_examples_that_fit_a_terminal_of_80_columns(command, capsys):
    assert exit_code(*command.split(), "--help") == 0
    examples = capsys.readouterr().out.partition("Examples")[2]
    assert f"intnacl {command}" in examples
    lines = examples.partition("╭")[0].split("\n")
    assert all(" intnacl " in line for line in lines if line.strip()), "a wrapped example cannot be copied"


def test_help_loads_no_more_than_it_needs():
    code = (
        "import sys; from intnacl.cli import app; app(['--help'], result_action='return_value');"
        "loaded = {'torch', 'sklearn', 'matplotlib', 'scipy', 'PIL', 'jinja2', 'intnacl.runs.config',"
        "'intnacl.data', 'intnacl.runs.measure', 'intnacl.paper'} & set(sys.modules);"
        "assert not loaded, loaded"
    )
    python(code)


def _fail_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def _fail(**_: bool) -> None:
        raise error

    monkeypatch.setattr(program, "app", _fail)
    monkeypatch.setattr(program, "show_warnings_once", lambda: None)
    main()


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("eps=8"), 2, "eps=8"),
        (LostRankError("rank 1"), 1, "rank 1"),
        (MemoryError(), 1, FULL),
        (PermissionError(errno.EACCES, "Permission denied", "/secret"), 1,
         "/secret: Permission denied: choose another place (--out, --root)."),
        (OSError(errno.EROFS, "Read-only file system"), 1,
         "Read-only file system: choose another place (--out, --root)."),
        (RuntimeError("Storage size calculation overflowed with sizes=[9]"), 1, FULL),
    ],
)  # fmt: skip
def test_an_error_for_the_user_is_one_line(
    error, code, line, monkeypatch,
    capsys,
):  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        _fail_with(error, monkeypatch)
    assert ended.value.code == code
    assert capsys.readouterr().err == f"intnacl: {line}\n"


@pytest.mark.filterwarnings("ignore:Cyclopts application invoked without tokens")  # it sees a test
@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("pretrain --tau-plus 0.3", "--tau-plus is not a flag: write --set loss.tau_plus=…"),
        ("reproduce --temperature=0.1", "--temperature is not a flag: write --set loss.temperature=…"),
        ("knn RUN --strength 1", "`intnacl knn --help` shows how."),  # it takes no settings
        ("pretrain --epoch 3", "? `intnacl pretrain --help` shows how."),  # after a suggestion
        ("run runs/mine", "unexpected argument 'runs/mine'. `intnacl run --help` shows how."),
        ("probe", "requires an argument. `intnacl probe --help` shows how."),
        ("prob", "`intnacl --help` shows how."),
        ("run --epochs 1.5", "--epochs: '1.5' is not a whole number. `intnacl run --help` shows how."),
        ("knn RUN --k 2.0", "--k: '2.0' is not a whole number. `intnacl knn --help` shows how."),
        ("reproduce --table main --seeds --dry-run",
         "--seeds requires at least 1 element. Got 0. `intnacl reproduce --help` shows how."),
        ("run --out=", "--out= is empty: is it a shell variable that is not set?"),
        ("run --out '' --epochs 1",
         "the value of --out is empty: is it a shell variable that is not set?"),
        ("probe ''", "an argument is empty: is it a shell variable that is not set?"),
        ("report --out=x== --set=evaluation.transfer=", "`intnacl report --help` shows how."),  # not empty
        ("reproduce --seeds 0 1.5", "'1.5' is not a whole number. `intnacl reproduce --help` shows how."),
        ("datasets show digits --rows 0.5",
         "--rows: '0.5' is not a whole number. `intnacl datasets show --help` shows how."),
    ],
)  # fmt: skip
def test_wrong_arguments_give_one_line_with_a_remedy(words, line, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["intnacl", *shlex.split(words)])
    monkeypatch.setattr(program, "show_warnings_once", lambda: None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("intnacl: ")
    assert told.endswith(f"{line}\n")
    assert told.count("\n") == 1


def test_an_error_of_the_program_keeps_its_traceback(monkeypatch):
    with pytest.raises(RuntimeError, match="shapes"):
        _fail_with(RuntimeError("shapes differ"), monkeypatch)
    with pytest.raises(FileNotFoundError, match="template"):
        _fail_with(FileNotFoundError(errno.ENOENT, "missing", "template"), monkeypatch)


def test_a_closed_pipe_ends_the_program_silently():
    words = [sys.executable, "-m", "intnacl", "reproduce", "--dry-run", "--all"]  # more than a pipe holds
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


def test_public_names_are_loaded_on_first_use():
    python(
        "import sys, intnacl; assert 'torch' not in sys.modules; assert 'IntNaClLoss' in dir(intnacl);"
        "from intnacl import IntNaClLoss; assert IntNaClLoss.__module__ == 'intnacl.losses.integrated';"
        "assert 'intnacl.models.weights' not in sys.modules; intnacl.from_pretrained;"
        "assert 'intnacl.models.weights' in sys.modules; assert 'digits-intnacl' in intnacl.pretrained();"
        "assert not hasattr(intnacl, 'nothing')"
    )


def test_the_loss_and_its_views_only_need_torch():
    python(
        "import sys\n"
        "for name in 'safetensors sklearn matplotlib rich cyclopts PIL jinja2 torchvision timm'.split():\n"
        "    sys.modules[name] = None\n"
        "from intnacl import IntNaClLoss\n"
        "from intnacl.attacks import adversarial_view\n"
        "from intnacl.data.views import mix\n"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes")
def test_any_name_of_a_folder_is_trained_on_and_shown_without_terminal_codes(tmp_path):
    place = tmp_path / "we\x1b[31m<b>\n$\udcff"
    name = write_images(place, classes=("c\x1bat", "d\n\udcfe"))
    (place / "train" / "c\x1bat" / "br\x1b[7m\n.png").write_bytes(b"junk")
    settings = ("probe.solver=lbfgs", "encoder.name=small", "evaluation.eps=0.1", "size=8", "recipe=paper")
    out, short = f"{place}-run", ("--epochs", 1, "--batch-size", 4, "--set", *settings)
    for words in (("run", "--dataset", name, *short, "--out", out), ("embed", out), ("export", out)):
        result = intnacl(*words, "--root", tmp_path / "root") if words[0] != "export" else intnacl(*words)
        shown = result.stdout + result.stderr
        assert result.returncode == 0, shown
        assert not [c for c in shown if not c.isprintable() and c != "\n"]
    assert (Path(out) / "report.html").exists()


@pytest.mark.parametrize(("given", "expected"), [({}, "400"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)])
def test_waiting_threads_sleep_soon_unless_the_user_says_otherwise(monkeypatch, given, expected):
    """The variable is set before torch is loaded, and processes that the command starts inherit it."""
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    code = "import os, sys; from intnacl.cli import main; sys.argv = ['intnacl', '--help']\n"
    code += "try: main()\nexcept SystemExit: pass\n"
    code += "print('torch' in sys.modules, os.environ.get('GOMP_SPINCOUNT'))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | given, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == f"False {expected}"
