"""Write the results into README.md and docs/claims.md, and draw Figure 1: `python docs/draw_results.py`.

All come from the runs in results/. In the pages they stand between two marks.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from intnacl.paper.cells import Cell, FilledTable, RecordedRun, read_cells
from intnacl.paper.claims import Judgement, judge
from intnacl.paper.figures import draw
from intnacl.paper.published import training_times

ROOT = Path(__file__).parents[1]
README, CLAIMS = ROOT / "README.md", ROOT / "docs" / "claims.md"
FIGURE = ROOT / "docs" / "images" / "figure1.png"
BEGIN, END = "<!-- results: docs/draw_results.py writes this -->\n", "<!-- end of results -->\n"
TABLES = ("main", "main_beside")
COLUMNS = (
    ("clean", "cifar100", "clean"), ("FGSM", "cifar100", "fgsm"), ("PGD", "cifar100", "pgd"),
    ("PGD tuned", "cifar100", "pgd_tuned"), ("AutoAttack", "cifar100", "autoattack"),
    ("→ CIFAR-10 clean", "cifar10", "clean"), ("→ CIFAR-10 FGSM", "cifar10", "fgsm"),
    ("minutes", None, "minutes"),
)  # fmt: skip


def table(views: dict[str, FilledTable]) -> str:
    """The table and what it was measured with, as Markdown."""
    head = ["loss", "seeds", *(label for label, *_ in COLUMNS)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name in TABLES:
        lines += [line(views[name], i) for i in range(len(views[name].rows))]
    runs = [run for name in TABLES for run in finished(views[name])]
    return "\n".join([*lines, "", note(runs), ""])


def line(view: FilledTable, i: int) -> str:
    """A row: the loss, its seeds, and its figures with the published ones behind them."""
    cells = [view.cells[i][place(view, dataset, metric)] for _, dataset, metric in COLUMNS]
    seeds = cells[0].n
    return f"| {view.rows[i].label} | {seeds} | {' | '.join(text(cell, seeds) for cell in cells)} |"


def place(view: FilledTable, dataset: str | None, metric: str) -> int:
    """The column of a figure."""
    wanted = (dataset, metric)
    return next(j for j, c in enumerate(view.columns) if (c.dataset, c.metric) == wanted)


def text(cell: Cell, seeds: int) -> str:
    """53.95 ± 0.24 (53.69): mean, deviation over the seeds, and the published mean in brackets.

    A figure of other than the row's number of seeds says of how many.
    """
    published = "" if cell.published is None else f" ({cell.published.mean:.2f})"
    if cell.mean is None:
        return f"–{published}"
    spread = "" if cell.sd is None else f" ± {cell.sd:.2f}"
    of = "" if cell.n == seeds else f", n = {cell.n}"
    return f"{cell.mean:.2f}{spread}{of}{published}"


def finished(view: FilledTable) -> list[RecordedRun]:
    """The runs behind a table that are done."""
    found = {run.name: run for row in view.cells for cell in row for run in cell.runs.values()}
    return [run for run in found.values() if run.result is not None]


def note(runs: list[RecordedRun]) -> str:
    """What the figures are, and hardware, versions and dates of the runs."""
    found = [run.result for run in runs if run.result is not None]
    protocols = [result["protocol"] for result in found]
    made = sorted(
        {f"{p['hardware']['gpu']}, torch {p['versions']['torch'].split('+')[0]}" for p in protocols}
    )
    days = sorted({p["date"] for p in protocols})
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    return (
        "CIFAR-100, ResNet-18, 100 epochs, a linear probe on frozen features; percent of the "
        f"{images(found, 'pgd')} test images (AutoAttack: of {images(found, 'autoattack')}, where "
        "differences below 4 points say little), "
        "attacks at ε = 0.002 in pixels of [0, 1]; PGD is the paper's (10 steps, 2 starts), PGD tuned "
        "takes 40 steps; minutes are those of all updates, without compilation, kNN and checkpoints, of the "
        f"fastest seed that had the GPU to itself (the paper's, on its machine: {training_times()}). Mean ± "
        "standard deviation over the seeds, in brackets the paper's mean of five trials; "
        f"–: not measured yet. Each run on one {' or one '.join(made)}, {when}."
    )


def images(results: Sequence[Mapping[str, Any]], attack: str) -> str:
    """How many images an attack was run on."""
    counts = {a["images"] for result in results for a in result["attacks"] if a["name"] == attack}
    return " or ".join(f"{count:,}" for count in sorted(counts))


def between(page: str, content: str) -> str:
    """A page with new content between the marks."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + content + END + rest.partition(END)[2]


def claims(judgements: list[Judgement]) -> str:
    """The page of claims: each with its verdict and the comparisons that are measured."""
    parts: list[str] = []
    for one in judgements:
        parts.append(f"**{one.claim.text}** ({one.claim.where}): {one.verdict}.\n")
        found = [f"- {difference}\n" for difference in one.differences if difference.verdict != "missing"]
        parts += ["".join(found)] if found else []
    return "\n" + "\n".join(parts)


def figure(view: FilledTable) -> bytes:
    """A figure as PNG that also holds, as text, the values it shows."""
    image, info = Image.open(io.BytesIO(draw(view)[1])), PngInfo()
    info.add_itxt("values", values(view))
    png = io.BytesIO()
    image.save(png, format="PNG", pnginfo=info)
    return png.getvalue()


def values(view: FilledTable) -> str:
    """One line a row: its label and its cells."""
    rows = zip(view.rows, view.cells, strict=True)
    return "\n".join(
        ": ".join([row.label, ", ".join(text(cell, cell.n) for cell in cells)]) for row, cells in rows
    )


def results() -> tuple[dict[str, FilledTable], list[Judgement]]:
    """The tables of results/ by their names, and the claims."""
    views, runs = read_cells(ROOT / "results")
    return {view.key: view for view in views}, judge(runs)


def main() -> None:
    """Rewrite the table, the claims and the figure."""
    views, judgements = results()
    for page, content in ((README, table(views)), (CLAIMS, claims(judgements))):
        page.write_text(between(page.read_text(encoding="utf-8"), content), encoding="utf-8")
    FIGURE.write_bytes(figure(views["figure1"]))


if __name__ == "__main__":
    main()
