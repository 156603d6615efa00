"""Names are drawn in letters, where an installed font has them."""

from types import SimpleNamespace

import pytest

from intnacl.plots import fonts

INSTALLED = {"dejavu": "abcü", "resort": "abcü蓝カก", "broken": "", "bold": "蓝", "kanji": "蓝カ"}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"resort": "Last Resort High-Efficiency", "kanji": "Some Kanji", "bold": "Some Bold"}
    listed = [
        SimpleNamespace(fname=file, name=names.get(file, file), weight=700 if file == "bold" else 400)
        for file in INSTALLED
    ]
    monkeypatch.setattr("matplotlib.font_manager.fontManager.ttflist", listed)
    monkeypatch.setattr("matplotlib.font_manager.findfont", lambda _: "dejavu")
    monkeypatch.setattr(fonts, "_letters", lambda file: frozenset(INSTALLED[file]))
    fonts._others.cache_clear()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("texts", "more"), [(["bac", "ü"], []), (["蓝a", "カ"], ["Some Kanji"]), (["ก"], []), ([], [])]
)
def test_another_font_has_the_letters_that_the_usual_one_lacks(texts: list[str], more: list[str]) -> None:
    assert fonts.families(texts) == ["sans-serif", *more]


def test_letters_are_those_of_the_file() -> None:
    from matplotlib.font_manager import FontProperties, findfont

    letters = fonts._letters(findfont(FontProperties()))
    assert {"a", "ü", "λ"} <= letters
    assert "蓝" not in letters
    assert fonts._letters("/no/such/font.ttf") == frozenset()
