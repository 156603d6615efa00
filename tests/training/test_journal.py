"""What a run tells: a log that can be rewound, a bar or plain lines, TensorBoard events."""

import builtins
import errno
import io
import json
import os
import sys
from pathlib import Path

import pytest

from intnacl.errors import InputError
from intnacl.training.journal import TAIL, Journal, last_record, records


def record(epoch: int, **more: float) -> dict:
    return {
        "epoch": epoch,
        "step": 10 * epoch,
        "loss": 1.5 / epoch,
        **more,
        "images_per_s": 1234.5,
        "seconds": 2.0,
    }


def write(folder: Path, count: int, **options: Path) -> None:
    with Journal(folder / "log.jsonl", epochs=count, **options) as journal:
        for epoch in range(1, count + 1):
            journal.epoch(record(epoch))


def test_one_json_object_and_one_plain_line_an_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Journal(tmp_path / "log.jsonl", epochs=2) as journal:
        journal.say("hello")
        journal.progress(0.5, {"loss": 2.0}, 100.0)  # without a terminal nothing moves
        journal.epoch(record(1, knn=87.5))
    assert capsys.readouterr().out == "hello\nepoch 1/2  loss 1.5  knn 87.5  1,234 images/s\n"
    assert records(tmp_path / "log.jsonl") == [record(1, knn=87.5)]


@pytest.mark.parametrize(
    ("terms", "shown"),
    [
        ({"nacl": 1.5, "robust": 0.0}, "loss 1.5"),
        ({"nacl": 1.0, "robust": 0.5}, "loss 1.5  nacl 1  robust 0.5"),
    ],
)
def test_a_loss_of_one_term_is_shown_once_but_logged_whole(
    terms: dict[str, float], shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Journal(tmp_path / "log.jsonl", epochs=1) as journal:
        journal.epoch(record(1, **terms))
    assert capsys.readouterr().out == f"epoch 1/1  {shown}  1,234 images/s\n"
    assert records(tmp_path / "log.jsonl") == [record(1, **terms)]


@pytest.mark.parametrize("step", [20, 25, 29])
def test_rewinding_forgets_what_comes_after_and_a_line_cut_short(tmp_path: Path, step: int) -> None:
    write(tmp_path, 4)
    path = tmp_path / "log.jsonl"
    path.write_text(path.read_text() + '{"epoch": 5, "st')
    assert [row["epoch"] for row in records(path)] == [1, 2, 3, 4]
    with Journal(tmp_path / "log.jsonl", epochs=4) as journal:
        journal.rewind(step)
        assert path.read_text() == "".join(json.dumps(record(epoch)) + "\n" for epoch in (1, 2))
        journal.epoch(record(3))
    assert [row["epoch"] for row in records(path)] == [1, 2, 3]


def test_rewinding_to_the_start_empties_the_log(tmp_path: Path) -> None:
    write(tmp_path, 2)
    Journal(tmp_path / "log.jsonl", epochs=2).rewind(0)
    assert records(tmp_path / "log.jsonl") == []


@pytest.mark.parametrize("cut", ["", "{", '{"epoch": 5, "st', '{"epoch": 5, "terms": {}'])
def test_the_last_record_is_read_from_the_end(tmp_path: Path, cut: str) -> None:
    path = tmp_path / "log.jsonl"
    assert last_record(path) is None
    path.write_text(cut)
    assert last_record(path) is None
    lines = [json.dumps(record(epoch)) + "\n" for epoch in range(1, 1001)]
    path.write_text("".join(lines) + cut)
    assert path.stat().st_size > TAIL
    assert last_record(path) == records(path)[-1] == record(1000)
    path.write_text("not JSON\n" + "".join(lines) + cut)
    assert last_record(path) == record(1000)  # `records` would stop at the first line


def test_a_kill_while_rewinding_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 3)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        Journal(tmp_path / "log.jsonl", epochs=3).rewind(20)
    assert [row["epoch"] for row in records(tmp_path / "log.jsonl")] == [1, 2, 3]


def test_other_ranks_are_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Journal(
        tmp_path / "log.jsonl", epochs=2, active=False, tensorboard=tmp_path / "tensorboard"
    ) as journal:
        journal.rewind(0)
        journal.say("hello")
        journal.epoch(record(1))
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_bar_shows_terms_speed_and_time_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    with Journal(tmp_path / "log.jsonl", epochs=3) as journal:
        journal.progress(1.5, {"nacl": 4.25, "robust": 2.0}, 54321.0)
        journal.say("a sentence with [/brackets]")
        journal.epoch(record(1))
    shown = screen.getvalue()
    for text in ("1.5/3", "nacl 4.25", "robust 2", "54,321 images/s", "a sentence with [/brackets]"):
        assert text in shown
    assert capsys.readouterr().out == ""


def test_tensorboard_gets_the_same_numbers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write(tmp_path, 3, tensorboard=tmp_path / "tensorboard")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 1.5), (2, 0.75), (3, 0.5)]


@pytest.mark.parametrize("kept", [2, 0])
def test_tensorboard_shows_an_epoch_once_after_a_resumption(tmp_path: Path, kept: int) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write(tmp_path, 4, tensorboard=tmp_path / "tensorboard")
    with Journal(tmp_path / "log.jsonl", epochs=4, tensorboard=tmp_path / "tensorboard") as journal:
        journal.rewind(10 * kept)
        for epoch in range(kept + 1, 5):
            journal.epoch(record(epoch) | {"loss": 7.0})
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    losses = [1.5, 0.75, 7.0, 7.0] if kept else [7.0] * 4
    assert [(event.step, event.value) for event in events.Scalars("loss")] == list(enumerate(losses, start=1))


def test_without_tensorboard_the_message_tells_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: object, **more: object) -> object:
        if "tensorboard" in name:
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(InputError, match=r"pip install 'intnacl\[tensorboard\]'"):
        Journal(tmp_path / "log.jsonl", epochs=1, tensorboard=tmp_path / "tensorboard")


def test_a_full_disk_ends_in_a_clear_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 1)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "open", full)
    with (
        Journal(tmp_path / "log.jsonl", epochs=1) as journal,
        pytest.raises(InputError, match=r"log\.jsonl.*No space left"),
    ):
        journal.epoch(record(2))


def test_the_time_left_is_known_of_slow_steps_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    journal = Journal(tmp_path / "log.jsonl", epochs=4)
    now = 0
    monkeypatch.setattr(journal._bar, "get_time", lambda: now)
    for update in range(1, 6):
        now = 60 * update
        journal.progress(update / 10, {"loss": 1.0}, 4.0)
    assert journal._bar.tasks[0].time_remaining == 35 * 60, "an update a minute, 35 to go"


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (60.0, ""),
        (1500.0, "about 25 minutes to go at this speed\n"),
        (9e4, "about 25 hours to go at this speed\n"),
    ],
)
def test_a_long_time_left_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seconds: float, told: str
) -> None:
    with Journal(tmp_path / "log.jsonl", epochs=1) as journal:
        journal.time_left(seconds)
        journal.time_left(1e6)
    assert capsys.readouterr().out == told
