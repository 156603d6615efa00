"""The paper's tables and figures as plain lists of rows and columns.

A loss is a dictionary of settings; M = 1 rows of many tables are the same run and are trained once.
"""

from dataclasses import replace
from typing import Any

from intnacl.attacks.named import ATTACK_NAMES
from intnacl.errors import InputError, check_choice
from intnacl.losses.integrated import PRESETS
from intnacl.paper.tables import Column, Row, Table
from intnacl.paper.tiny import shrunk

LAMBDAS = (0.5, 0.6, 0.7, 0.8, 0.9)
POSITIVES = (1, 2, 3, 4, 5)
STRENGTHS = (0.002, 0.004, 0.008, 0.016, 0.032)
MILESTONES = (100, 200, 400, 600, 800, 1000, 1200, 1400, 1600, 1800, 2000)
METHODS = {
    "SimCLR": "simclr", "Debiased": "debiased", "HardNeg": "hardneg", "Debiased+HardNeg": "debiased_hardneg",
    "Adv": "adv", "IntCl": "intcl", "IntNaCl": "intnacl",
}  # fmt: skip
CIFAR = {"dataset": "cifar100", "evaluation.transfer": ("cifar10",)}
TINYIMAGENET = {"dataset": "tinyimagenet"}
SCALES = ("paper", "tiny")


def nca(g: str, m: int, **more: Any) -> dict[str, Any]:
    """L_NCA(G, M)."""
    return loss(nacl="nca", negatives=g, num_positives=m, **more)


def mixnca(g: str, m: int, lam: float, **more: Any) -> dict[str, Any]:
    """L_MIXNCA(G, M, λ)."""
    return loss(nacl="mixnca", negatives=g, num_positives=m, lam=lam, **more)


def loss(**keywords: Any) -> dict[str, Any]:
    """Keywords of the loss as settings of a run."""
    return {f"loss.{name}": value for name, value in keywords.items()}


def block(g: str, lam: float | None, positives: tuple[int, ...] = POSITIVES, **more: Any) -> tuple[Row, ...]:
    """The rows over M of one loss type; λ None is NCA."""
    robust = ", α = 1" if more else ""
    robust += ", w = 1" if "weight" in more else ""
    group = f"NCA({g}{robust})" if lam is None else f"MIXNCA({g}, λ = {lam}{robust})"
    return tuple(
        Row(
            label=f"M = {m}",
            group=group,
            settings=nca(g, m, **more) if lam is None else mixnca(g, m, lam, **more),
        )
        for m in positives
    )


def measures(*metrics: str) -> tuple[Column, ...]:
    """The metrics on CIFAR-100 and, by transfer, on CIFAR-10; AutoAttack where it has been run."""
    names = {"cifar100": "CIFAR-100", "cifar10": "→ CIFAR-10"}
    return tuple(
        Column(
            label=f"{name} {ATTACK_NAMES.get(metric, metric)}",
            metric=metric,
            dataset=key,
            optional=metric == "autoattack",
        )
        for key, name in names.items()
        for metric in metrics
    )


def complete(name: str, title: str, g: str, *metrics: str, **more: Any) -> Table:
    """A table of the appendix: NCA and MIXNCA with every λ."""
    rows = sum((block(g, lam, **more) for lam in (None, *LAMBDAS)), ())
    return Table(name=name, title=title, rows=rows, columns=measures(*metrics), settings=CIFAR)


def _tinyimagenet() -> Table:
    rows = (
        *block("g0", None, (1, 2)), *block("g2", None, (1, 2)),
        *block("g0", 0.9, (1, 2)), *block("g2", 0.5, (1, 2)),
        *block("g2", 0.5, (1, 2, 5), alpha=1.0), *block("g2", 0.5, (1, 2, 5), alpha=1.0, weight="one"),
    )  # fmt: skip
    columns = (Column(label="TinyImageNet clean"), Column(label="TinyImageNet FGSM", metric="fgsm"))
    title = "Table 4: NaCl and IntNaCl on TinyImageNet"
    return Table(name="table4", title=title, rows=rows, columns=columns, settings=TINYIMAGENET)


LONG = (
    Row(label="SimCLR", group="NaCl on SimCLR", settings=nca("g0", 1)),
    Row(label="NCA(g0, 2)", group="NaCl on SimCLR", settings=nca("g0", 2)),
    Row(label="MIXNCA(g0, 2, 0.9)", group="NaCl on SimCLR", settings=mixnca("g0", 2, 0.9)),
    Row(label="Debiased+HardNeg", group="NaCl on Debiased+HardNeg", settings=nca("g2", 1)),
    Row(label="NCA(g2, 2)", group="NaCl on Debiased+HardNeg", settings=nca("g2", 2)),
    Row(label="MIXNCA(g2, 2, 0.5)", group="NaCl on Debiased+HardNeg", settings=mixnca("g2", 2, 0.5)),
)


def _milestones(metric: str, text: str) -> tuple[Column, ...]:
    return tuple(
        Column(label=text.format(n), metric=metric, settings={"train.epochs": n}, x=n) for n in MILESTONES
    )


def _supervised() -> Table:
    base = {"objective": "supervised"}
    rows = (
        Row(label="supervised, the views of contrastive training", settings=base),
        Row(label="supervised, crop and flip only", settings={**base, "augment": "crop_flip"}),
    )
    title = "The supervised baseline (the paper does not state its augmentation)"
    settings = {**CIFAR, "train.epochs": 1000}
    columns = measures("clean", "fgsm", "pgd")
    return Table(name="supervised", title=title, rows=rows, columns=columns, settings=settings)


def _methods() -> tuple[Row, ...]:
    return tuple(Row(label=label, settings=loss(**PRESETS[preset])) for label, preset in METHODS.items())


def _named(*names: str) -> tuple[Row, ...]:
    """Rows of `_methods` by their labels."""
    rows = {row.label: row for row in _methods()}
    return tuple(rows[name] for name in names)


# The eleven encoders that the paper's claims are judged by: those of its abstract, and those beside them.
CENTRAL = (
    *_named("SimCLR", "Debiased+HardNeg"),
    Row(label="MIXNCA(g2, 5, 0.5)", settings=mixnca("g2", 5, 0.5)),
    *_named("IntCl", "IntNaCl"),
)
BESIDE = (
    *_named("Debiased", "HardNeg", "Adv"),
    Row(label="NCA(g0, 5)", settings=nca("g0", 5)),
    Row(label="NCA(g2, 5)", settings=nca("g2", 5)),
    Row(label="MIXNCA(g0, 2, 0.9)", settings=mixnca("g0", 2, 0.9)),
)


def _claims(name: str, title: str, rows: tuple[Row, ...]) -> Table:
    columns = (
        *measures("clean", "fgsm", "pgd", "pgd_tuned", "autoattack"),
        Column(label="minutes of training", metric="minutes"),
    )
    return Table(name=name, title=title, rows=rows, columns=columns, settings=CIFAR)


def _weights() -> Table:
    rows = tuple(
        Row(label=label, settings=loss(**PRESETS["intcl"] | {"weight": weight}))
        for label, weight in (("IntCl, ŵ", "relative"), ("IntCl, w = 1", "one"))
    )
    title = "What the adversarial weighting does on CIFAR-100"
    return Table(
        name="weights", title=title, rows=rows, columns=measures("clean", "fgsm", "pgd"), settings=CIFAR
    )


def _figure1() -> Table:
    panels = [replace(c, panel="CIFAR-100" if c.dataset == "cifar100" else "transfer to CIFAR-10")
              for c in measures("clean", "fgsm")]  # fmt: skip
    title = "Figure 1: accuracy against robustness"
    return Table(
        name="figure1", title=title, rows=_methods(), columns=tuple(panels), settings=CIFAR, figure="scatter"
    )


def _figure_lambda() -> Table:
    rows = tuple(
        Row(label=f"M = {m}", group=f"MIXNCA({g})", settings=nca(g, m))
        for g in ("g0", "g2")
        for m in POSITIVES
    )
    columns = tuple(
        replace(
            c,
            label=f"{c.label}, λ = {lam}",
            panel=c.label,
            x=lam,
            settings=loss(nacl="mixnca", lam=lam),
        )
        for c in measures("clean", "fgsm")
        for lam in LAMBDAS
    )
    title = "Accuracy as a function of λ (M = 1 has none: the baseline)"
    return Table(
        name="figure_lambda",
        title=title,
        rows=rows,
        columns=columns,
        settings=CIFAR,
        figure="curves",
        x_label="λ",
    )


def _figure_eps() -> Table:
    columns = tuple(
        Column(label=f"FGSM {eps}", metric="fgsm", dataset="cifar100", eps=eps, x=eps) for eps in STRENGTHS
    )
    title = "Accuracy under FGSM of different strength"
    named = {row.label for row in _methods()}
    more = tuple(replace(row, group="NaCl alone") for row in (*CENTRAL, *BESIDE) if row.label not in named)
    rows = (*(replace(row, group="the paper's figure") for row in _methods()), *more)
    return Table(
        name="figure_eps", title=title, rows=rows, columns=columns, settings=CIFAR, figure="curves",
        x_label="FGSM ε (pixels in [0, 1])",
    )  # fmt: skip


PAPER: tuple[Table, ...] = (
    _claims("main", "The main claims, under stronger attacks too", CENTRAL),
    _claims("main_beside", "The losses beside them", BESIDE),
    _weights(),
    Table(
        name="table2", title="Table 2: NaCl on SimCLR and on Debiased+HardNeg",
        columns=measures("clean", "fgsm"),
        rows=(*block("g0", None), *block("g2", None), *block("g0", 0.9), *block("g2", 0.5)), settings=CIFAR,
    ),
    Table(
        name="table3", title="Table 3: IntNaCl (M > 1) and IntCl (M = 1)", columns=measures("clean", "fgsm"),
        rows=sum((block("g2", lam, alpha=1.0) for lam in (None, 0.5, 0.7, 0.9)), ()), settings=CIFAR,
    ),
    _tinyimagenet(),
    complete("nacl_simclr", "Complete: NaCl on SimCLR", "g0", "clean", "fgsm"),
    complete("nacl_debiased_hardneg", "Complete: NaCl on Debiased+HardNeg", "g2", "clean", "fgsm"),
    complete("intnacl", "Complete: NaCl on IntCl", "g2", "clean", "fgsm", alpha=1.0),
    complete("nacl_pgd", "Complete: NaCl on Debiased+HardNeg, with PGD", "g2", "clean", "fgsm", "pgd"),
    Table(
        name="more_epochs", title="Longer training: CIFAR-100 accuracy by epochs", rows=LONG, settings=CIFAR,
        columns=_milestones("clean", "{} epochs"),
    ),
    _supervised(),
    _figure1(),
    _figure_lambda(),
    _figure_eps(),
    Table(
        name="figure_runtime", title="Accuracy with extended runtime", rows=LONG, settings=CIFAR,
        columns=(*_milestones("clean", "{} epochs"), *_milestones("minutes", "minutes for {} epochs")),
        figure="runtime", x_label="epochs of training",
    ),
)  # fmt: skip


def tables_of(scale: str) -> tuple[Table, ...]:
    """All tables of the paper, at its own scale or as a check of the machinery on the digits."""
    check_choice("scale", scale, SCALES)
    return PAPER if scale == "paper" else tuple(shrunk(table, MILESTONES) for table in PAPER)


def pick(tables: tuple[Table, ...], names: tuple[str, ...]) -> tuple[Table, ...]:
    """The tables of these names; a number stands for the main table with it."""
    known = {table.name: table for table in tables}
    chosen = dict.fromkeys(f"table{name}" if f"table{name}" in known else name for name in names)
    for name in chosen:
        check_choice("table", name, known)
    if not chosen:
        raise InputError("name a --table, or take --all; `--list` shows what there is.")
    return tuple(known[name] for name in chosen)
