"""Write the results into README.md and the pages, and draw Figure 1: `python docs/draw_results.py`.

All figures come from the runs in results/. In the pages, the script replaces the text between two marks.
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
REPRODUCTION = ROOT / "docs" / "reproduction.md"
FIGURE = ROOT / "docs" / "images" / "figure1.png"
TABLES = ("main", "main_beside")
COLUMNS = (
    ("clean", "cifar100", "clean"), ("FGSM", "cifar100", "fgsm"), ("PGD", "cifar100", "pgd"),
    ("PGD tuned", "cifar100", "pgd_tuned"), ("AutoAttack", "cifar100", "autoattack"),
    ("→ CIFAR-10 clean", "cifar10", "clean"), ("→ CIFAR-10 FGSM", "cifar10", "fgsm"),
    ("minutes", None, "minutes"),
)  # fmt: skip
README_COLUMNS = (COLUMNS[0], COLUMNS[1], COLUMNS[3])
Columns = Sequence[tuple[str, str | None, str]]


def lead(views: dict[str, FilledTable]) -> str:
    """Return README's line about accuracy: means and minutes of SimCLR and IntNaCl."""
    view = views["main"]
    labels = [row.label for row in view.rows]
    columns = [place(view, *column[1:]) for column in (*COLUMNS[:2], COLUMNS[-1])]

    def mean(loss: str, column: int) -> str:
        return f"{view.cells[labels.index(loss)][column].mean:.1f}"

    clean, fgsm, minutes = ([mean(loss, j) for loss in ("SimCLR", "IntNaCl")] for j in columns)
    return (
        f"- **Accurate and robust.** CIFAR-100, ResNet-18, 100 epochs: IntNaCl has {clean[1]} % accuracy, "
        f"and {fgsm[1]} % under FGSM\n  (ε = 0.002), after {minutes[1]} minutes of updates on an H200; "
        f"SimCLR has {clean[0]} % and {fgsm[0]} % after {minutes[0]}.\n"
    )


def summary(views: dict[str, FilledTable]) -> str:
    """Return README's table: the losses of the main claims, without and under attack, as Markdown."""
    found = [run.result for run in finished(views["main"]) if run.result is not None]
    rows = [row for result in found for row in result["attacks"] if row["dataset"] == "cifar100"]
    left = [row["accuracy"] for row in rows if (row["name"], row["eps"]) == ("fgsm", 0.032)]
    caveat = (
        "CIFAR-100, ResNet-18, 100 epochs, a linear probe on frozen features, percent of all "
        f"{images(found, 'pgd')} test images\nunder attacks at ε = 0.002: mean ± standard deviation over the "
        "seeds, in brackets the paper's mean of five. These encoders are\nrobust at this radius only: at "
        f"0.032, about the 8/255 of other benchmarks, FGSM leaves {min(left):.0f} to {max(left):.0f} %."
    )
    return "\n".join([*rows_of([views["main"]], README_COLUMNS), "", caveat, ""])


def table(views: dict[str, FilledTable]) -> str:
    """Return the whole table and its protocol, as Markdown."""
    runs = [run for name in TABLES for run in finished(views[name])]
    return "\n".join([*rows_of([views[name] for name in TABLES], COLUMNS), "", note(runs), ""])


def rows_of(tables: Sequence[FilledTable], columns: Columns) -> list[str]:
    """Return the lines of a table, including its head."""
    head = ["loss", "seeds", *(label for label, *_ in columns)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return lines + [line(view, i, columns) for view in tables for i in range(len(view.rows))]


def line(view: FilledTable, i: int, columns: Columns = COLUMNS) -> str:
    """Return a row: the loss, its number of seeds, and its figures with the published ones in brackets."""
    cells = [view.cells[i][place(view, dataset, metric)] for _, dataset, metric in columns]
    seeds = cells[0].n
    return f"| {view.rows[i].label} | {seeds} | {' | '.join(text(cell, seeds) for cell in cells)} |"


def place(view: FilledTable, dataset: str | None, metric: str) -> int:
    """Return the column of a figure."""
    wanted = (dataset, metric)
    return next(j for j, c in enumerate(view.columns) if (c.dataset, c.metric) == wanted)


def text(cell: Cell, seeds: int) -> str:
    """Write 53.95 ± 0.24 (53.69): mean, standard deviation over the seeds, and the published mean.

    The number of seeds is added if it is not that of the row.
    """
    published = "" if cell.published is None else f" ({cell.published.mean:.2f})"
    if cell.mean is None:
        return f"–{published}"
    spread = "" if cell.sd is None else f" ± {cell.sd:.2f}"
    of = "" if cell.n == seeds else f", n = {cell.n}"
    return f"{cell.mean:.2f}{spread}{of}{published}"


def finished(view: FilledTable) -> list[RecordedRun]:
    """Return the finished runs behind a table."""
    found = {run.name: run for row in view.cells for cell in row for run in cell.runs.values()}
    return [run for run in found.values() if run.result is not None]


def note(runs: list[RecordedRun]) -> str:
    """Describe the figures, and the hardware, versions and dates of the runs."""
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
    """Return the number of images that an attack was run on."""
    counts = {a["images"] for result in results for a in result["attacks"] if a["name"] == attack}
    return " or ".join(f"{count:,}" for count in sorted(counts))


def between(page: str, content: str, name: str = "results") -> str:
    """Return the page with new content between the marks of this name."""
    begin, end = f"<!-- {name}: docs/draw_results.py writes this -->\n", f"<!-- end of {name} -->\n"
    before, _, rest = page.partition(begin)
    return before + begin + content + end + rest.partition(end)[2]


def claims(judgements: list[Judgement]) -> str:
    """Return the claims, each with its verdict and its measured comparisons."""
    parts: list[str] = []
    for one in judgements:
        parts.append(f"**{one.claim.text}** ({one.claim.where}): {one.verdict}.\n")
        found = [f"- {difference}\n" for difference in one.differences if difference.verdict != "missing"]
        parts += ["".join(found)] if found else []
    return "\n" + "\n".join(parts)


def figure(view: FilledTable) -> bytes:
    """Return a figure as PNG whose metadata hold the values shown."""
    image, info = Image.open(io.BytesIO(draw(view)[1])), PngInfo()
    info.add_itxt("values", values(view))
    png = io.BytesIO()
    image.save(png, format="PNG", pnginfo=info)
    return png.getvalue()


def values(view: FilledTable) -> str:
    """Return one line per row: its label and its cells."""
    rows = zip(view.rows, view.cells, strict=True)
    return "\n".join(
        ": ".join([row.label, ", ".join(text(cell, cell.n) for cell in cells)]) for row, cells in rows
    )


def results() -> tuple[dict[str, FilledTable], list[Judgement]]:
    """Return the tables of results/ by their names, and the claims."""
    views, runs = read_cells(ROOT / "results")
    return {view.key: view for view in views}, judge(runs)


def main() -> None:
    """Rewrite the tables, the claims and the figure."""
    views, judgements = results()
    for page, name, content in (
        (README, "lead", lead(views)),
        (README, "results", summary(views)),
        (REPRODUCTION, "results", table(views)),
        (CLAIMS, "results", claims(judgements)),
    ):
        page.write_text(between(page.read_text(encoding="utf-8"), content, name), encoding="utf-8")
    FIGURE.write_bytes(figure(views["figure1"]))


if __name__ == "__main__":
    main()
