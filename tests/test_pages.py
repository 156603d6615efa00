"""The code, files and headings that the documentation refers to exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
AT_THE_TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
READ = (*AT_THE_TOP, "benchmarks/README.md", "results/README.md")
PAGES = [*sorted(DOCS.glob("*.md")), *(ROOT / name for name in READ)]


def label(value: object) -> str:
    return value.relative_to(ROOT).as_posix() if isinstance(value, Path) else str(value)


def links(page: Path) -> list[tuple[str, str]]:
    """Return (text, target) of the page's links and images outside code blocks."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return sorted(set(re.findall(r"\[([^\]]*)\]\(([^)\s]+)\)", text)))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


NAMED = [
    (page, text.strip("`"), target)
    for page in PAGES
    for text, target in links(page)
    if re.fullmatch(r"`\w+`", text) and target.endswith(".py")
]
LINKED = [(page, target) for page in PAGES for _, target in links(page) if "://" not in target]


@pytest.mark.parametrize(("page", "name", "target"), NAMED, ids=label)
def test_named_code_exists(page, name, target):
    source = (page.parent / target).read_text()
    defined = rf"^(def {name}\b|class {name}\b|{name}(: .+)? = )"
    assert re.search(defined, source, re.MULTILINE), f"{target} does not define {name}"


@pytest.mark.parametrize(("page", "target"), LINKED, ids=label)
def test_links_have_targets(page, target):
    path, _, anchor = target.partition("#")
    linked = page.parent / path if path else page
    assert linked.exists(), f"{label(page)} links to {target}"
    assert not anchor or anchor in anchors(linked), f"{label(page)} links to {target}"


def test_every_image_is_used():
    shown = {(page.parent / target).resolve() for page, target in LINKED}
    assert {path for path in (DOCS / "images").iterdir() if path.resolve() not in shown} == set()


def test_every_benchmark_is_described():
    described = {target for page, target in LINKED if page.parent.name == "benchmarks"}
    assert {path.name for path in (ROOT / "benchmarks").glob("*.py")} <= described


@pytest.mark.parametrize("name", ["losses.md", "theory.md"])
def test_pages_name_their_code(name):
    assert len([page for page, *_ in NAMED if page.name == name]) > 15


@pytest.mark.parametrize("name", ["README.md", "docs/losses.md", "docs/reproduction.md", "docs/claims.md"])
def test_the_departures_from_the_paper_are_the_same_three(name):
    text = (ROOT / name).read_text()
    begin = re.search(r"three (readings|things)|in three places", text, re.IGNORECASE)
    told = text[begin.start() :][:600]
    assert all(word in told for word in ("ŵ", "mixed", "negatives"))
    assert "two departures" not in text
