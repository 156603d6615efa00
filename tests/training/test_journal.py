"""The journal: a log that can be rewound, a bar or plain lines."""

import io
import json
import sys
from pathlib import Path

import pytest

from intnacl.errors import InputError
from intnacl.training.journal import TAIL, Journal, last_record, records


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log.jsonl"


def record(epoch: int, **more: float) -> dict[str, float]:
    own = {"epoch": epoch, "step": 10 * epoch, "loss": 1.5 / epoch}
    return {**own, **more, "images_per_s": 1234.5, "seconds": 2.0}


def write(log: Path, count: int) -> None:
    with Journal(log, epochs=count) as journal:
        for epoch in range(1, count + 1):
            journal.epoch(record(epoch))


@pytest.mark.parametrize(
    ("terms", "shown"),
    [
        ({"knn": 87.5}, "loss 1.500  knn 87.50"),
        ({"nacl": 1.0, "robust": 0.5}, "loss 1.500  nacl 1.000  robust 0.500"),
        ({"nacl": 1.5, "robust": 0.0}, "loss 1.500"),  # `nacl` would repeat it
        ({"lr": 0.01, "decay": 0.1}, "loss 1.500  lr 0.01"),  # which is said to be constant
    ],
)
def test_each_epoch_gives_one_json_object_and_one_plain_line(terms, shown, log, capsys):
    with Journal(log, epochs=2, constant=("decay",)) as journal:
        journal.say("hello")
        journal.progress(0.5, {"loss": 2.0}, 100.0)  # without a terminal nothing moves
        journal.epoch(record(1, **terms))
    assert capsys.readouterr().out == f"hello\nepoch 1/2  {shown}  1,234 images/s\n"
    assert records(log) == [record(1, **terms)]


@pytest.mark.parametrize(("step", "kept"), [(0, 0), (9, 0), (20, 2), (25, 2), (29, 2)])
def test_rewinding_drops_later_epochs_and_a_truncated_line(log, step, kept):
    write(log, 4)
    log.write_text(log.read_text() + '{"epoch": 5, "st')
    assert [row["epoch"] for row in records(log)] == [1, 2, 3, 4]
    with Journal(log, epochs=4) as journal:
        journal.rewind(step)
        assert log.read_text() == "".join(json.dumps(record(epoch)) + "\n" for epoch in range(1, kept + 1))
        journal.epoch(record(kept + 1))
    assert [row["epoch"] for row in records(log)] == list(range(1, kept + 2))


@pytest.mark.parametrize("cut", ["", "{", '{"epoch": 5, "st', '{"epoch": 5, "terms": {}'])
def test_the_last_record_is_read_from_the_end(log, cut):
    assert last_record(log) is None
    log.write_text(cut)
    assert last_record(log) is None
    lines = [json.dumps(record(epoch)) + "\n" for epoch in range(1, 1001)]
    log.write_text("".join(lines) + cut)
    assert log.stat().st_size > TAIL
    assert last_record(log) == records(log)[-1] == record(1000)
    log.write_text("not JSON\n" + "".join(lines) + cut)
    assert last_record(log) == record(1000)


DAMAGE = ["[]", "7", "null", '{"epoch": 2}', '{"step": 5}', '{"epoch": 2, "step": "5"}', "[" * 10_000, "{"]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage[:20])
def test_damaged_lines_are_skipped(log, damage):
    write(log, 3)
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join([lines[0], damage + "\n", *lines[1:], damage + "\n"]))
    assert records(log) == [record(epoch) for epoch in (1, 2, 3)]
    assert last_record(log) == record(3)
    with Journal(log, epochs=3) as journal:
        journal.rewind(20)
    assert log.read_text() == "".join(lines[:2])


def test_a_kill_while_rewinding_loses_nothing(log, monkeypatch):
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    write(log, 3)
    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        Journal(log, epochs=3).rewind(20)
    assert [row["epoch"] for row in records(log)] == [1, 2, 3]


def test_other_ranks_are_silent(log, capsys):
    with Journal(log, epochs=2, active=False) as journal:
        journal.rewind(0)
        journal.say("hello")
        journal.epoch(record(1))
    assert capsys.readouterr().out == ""
    assert list(log.parent.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_gives_a_clear_error(log):
    log.symlink_to("/dev/full")
    with Journal(log, epochs=1) as journal, pytest.raises(InputError, match=r"log\.jsonl.*No space left"):
        journal.epoch(record(2))


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    return screen


def test_a_bar_shows_terms_speed_and_sentences(log, monkeypatch, capsys):
    screen = on_a_terminal(monkeypatch)
    with Journal(log, epochs=3) as journal:
        journal.progress(1.5, {"nacl": 4.25, "robust": 2.0}, 54321.0)
        journal.say("a sentence with [/brackets]")
        journal.epoch(record(1))
    for text in ("1.5/3", "nacl 4.25", "robust 2", "54,321 images/s", "a sentence with [/brackets]"):
        assert text in screen.getvalue()
    assert capsys.readouterr().out == ""


def test_a_bar_estimates_the_time_left_even_for_slow_steps(log, monkeypatch):
    screen, now = on_a_terminal(monkeypatch), 0
    monkeypatch.setattr("rich.console.monotonic", lambda: now)
    with Journal(log, epochs=4) as journal:
        for update in range(1, 6):
            now = 60 * update
            journal.progress(update / 10, {"loss": 1.0}, 4.0)
    assert "0:35:00" in screen.getvalue(), "an update a minute, 35 to go"


@pytest.mark.parametrize(("seconds", "said"), [(60.0, ""), (1500.0, "25 minutes"), (9e4, "25 hours")])
def test_without_a_bar_a_long_time_left_is_announced_once(log, capsys, seconds, said):
    with Journal(log, epochs=1) as journal:
        journal.time_left(seconds)
        journal.time_left(1e6)
    assert capsys.readouterr().out == (said and f"about {said} to go at this speed\n")
