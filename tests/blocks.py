"""The code blocks of the Markdown pages, and how the tests run them.

The line before a block of Python or shell that cannot run gives the reason, for example
<!-- not run: needs eight GPUs -->.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>.+) -->\n)?^```(?P<language>.*)\n(?P<code>(?:.*\n)*?)```$", re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """One fenced code block of a page."""

    page: Path
    line: int
    language: str
    code: str
    reason: str | None

    @property
    def place(self) -> str:
        """The page and line, for messages."""
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"

    def run(self, names: dict[str, object]) -> None:
        """Run a Python block in the namespace of the blocks before it."""
        exec(compile("\n" * self.line + self.code, self.place, "exec"), names)


def blocks(page: Path, *languages: str) -> list[Block]:
    """The page's blocks in these languages, or all blocks if none is named."""
    text = page.read_text()
    found = [
        Block(
            page, text.count("\n", 0, match.start("code")), match["language"], match["code"], match["reason"]
        )
        for match in FENCE.finditer(text)
    ]
    return [block for block in found if not languages or block.language in languages]


def runnable(page: Path, language: str) -> list[Block]:
    """The page's blocks in a language, without those marked as not run."""
    return [block for block in blocks(page, language) if block.reason is None]


def python_names(page: Path, names: dict[str, object] | None = None) -> dict[str, object]:
    """Run the page's Python blocks in order and return the namespace that they fill."""
    names = {} if names is None else names
    for block in runnable(page, "python"):
        block.run(names)
    return names
