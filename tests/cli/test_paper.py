"""`reproduce` and `report`: their flags; tests/paper runs them from end to end."""

from pathlib import Path

import pytest

from intnacl.cli import app
from intnacl.paper import report, reproduce
from intnacl.paper.reproduce import Selection


def asked(
    monkeypatch: pytest.MonkeyPatch, *words: str, ending: tuple[str | None, int] = (None, 0)
) -> tuple[Selection, int]:
    """Return the request that `intnacl reproduce` makes of these words, and the exit code for this ending."""
    requests = []
    monkeypatch.setattr(reproduce, "reproduce", lambda request: requests.append(request) or ending)
    with pytest.raises(SystemExit) as ended:
        app(["reproduce", *words])
    return requests[0], int(ended.value.code or 0)


def test_flags_become_a_request(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    request, code = asked(
        monkeypatch, "--table", "2", "figure1", "--seeds", "3", "1", "--root", "data", "--max-minutes", "9",
        "--out", "here", "--set", "train.lr=0.1", "augment.strength=0.5",
    )  # fmt: skip
    assert code == 0
    assert (request.tables, request.seeds, request.everything) == (("2", "figure1"), (3, 1), False)
    assert (request.max_minutes, request.out) == (9, Path("here"))
    assert request.overrides == {
        "root": str(tmp_path / "data"), "train.lr": "0.1", "augment.strength": "0.5",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ending", "code"), [((None, 0), 0), (("time", 0), 0), ((None, 2), 1), (("terminate", 2), 75)]
)
def test_the_exit_code_depends_on_the_ending(ending, code, monkeypatch):
    assert asked(monkeypatch, "--all", ending=ending)[1] == code


def test_a_report_is_written_to_its_results_folder_by_default(monkeypatch, capsys):
    monkeypatch.setattr(report, "write_report", lambda results, out: [results, out])
    app(["report", "mine"], result_action="return_value")
    app(["report", "mine", "--out", "there"], result_action="return_value")
    assert capsys.readouterr().out.split() == ["mine", "mine/report", "mine", "there"]
