"""The paper's tables and figures as plain lists of rows and columns, and their tiny versions on the digits.

A loss is a dictionary of settings; the rows with M = 1 of many tables are the same run, trained once.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from intnacl.attacks.named import ATTACK_NAMES
from intnacl.errors import InputError, check_choice
from intnacl.losses.config import PRESETS
from intnacl.paper.tables import Column, Row, Settings, Table

LAMBDAS = (0.5, 0.6, 0.7, 0.8, 0.9)
POSITIVES = (1, 2, 3, 4, 5)
STRENGTHS = (0.002, 0.004, 0.008, 0.016, 0.032)
MILESTONES = (100, 200, 400, 600, 800, 1000, 1200, 1400, 1600, 1800, 2000)
CIFAR = {"dataset": "cifar100", "evaluation.transfer": ("cifar10",)}
TINYIMAGENET = {"dataset": "tinyimagenet"}
SUPERVISED = {"objective": "supervised"}
SCALES = ("paper", "tiny")
TINY: Settings = {
    "dataset": "digits", "evaluation.transfer": (), "train.epochs": 1, "train.batch_size": 128,
    "train.monitor_epochs": 0, "encoder.name": "small", "probe.solver": "lbfgs", "probe.max_iter": 10,
    "evaluation.eps": (0.002,), "evaluation.attacks": ("fgsm", "pgd"),
}  # fmt: skip
TINY_HOLDOUT = 200  # digits held out, for tables that hold images out


def loss(**keywords: Any) -> dict[str, Any]:
    """Return keywords of the loss as settings of a run."""
    return {f"loss.{name}": value for name, value in keywords.items()}


def nca(g: str, m: int, **more: Any) -> dict[str, Any]:
    """L_NCA(G, M)."""
    return loss(nacl="nca", negatives=g, num_positives=m, **more)


def mixnca(g: str, m: int, lam: float, **more: Any) -> dict[str, Any]:
    """L_MIXNCA(G, M, λ)."""
    return loss(nacl="mixnca", negatives=g, num_positives=m, lam=lam, **more)


def block(g: str, lam: float | None, positives: tuple[int, ...] = POSITIVES, **more: Any) -> tuple[Row, ...]:
    """Return the rows over M of one kind of loss: NCA if λ is None, else MIXNCA."""
    robust = ", α = 1" if more else ""
    robust += ", w = 1" if "weight" in more else ""
    group = f"NCA({g}{robust})" if lam is None else f"MIXNCA({g}, λ = {lam}{robust})"
    losses = [nca(g, m, **more) if lam is None else mixnca(g, m, lam, **more) for m in positives]
    return tuple(
        Row(label=f"M = {m}", group=group, settings=settings)
        for m, settings in zip(positives, losses, strict=True)
    )


def measures(*metrics: str) -> tuple[Column, ...]:
    """Return columns of the metrics on CIFAR-100 and, by transfer, CIFAR-10; AutoAttack's are optional."""
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
    """Return a table of the appendix: NCA, and MIXNCA with every λ."""
    rows = sum((block(g, lam, **more) for lam in (None, *LAMBDAS)), ())
    return Table(name=name, title=title, rows=rows, columns=measures(*metrics), settings=CIFAR)


def by_epochs(metric: str, label: str) -> tuple[Column, ...]:
    """Return a column for each length of training, labelled with its epochs."""
    return tuple(
        Column(label=label.format(n), metric=metric, settings={"train.epochs": n}, x=n) for n in MILESTONES
    )


SIMCLR = Row(label="SimCLR", settings=loss(**PRESETS["simclr"]))
DEBIASED = Row(label="Debiased", settings=loss(**PRESETS["debiased"]))
HARDNEG = Row(label="HardNeg", settings=loss(**PRESETS["hardneg"]))
DEBIASED_HARDNEG = Row(label="Debiased+HardNeg", settings=loss(**PRESETS["debiased_hardneg"]))
ADV = Row(label="Adv", settings=loss(**PRESETS["adv"]))
INTCL = Row(label="IntCl", settings=loss(**PRESETS["intcl"]))
INTNACL = Row(label="IntNaCl", settings=loss(**PRESETS["intnacl"]))
SEVEN = (SIMCLR, DEBIASED, HARDNEG, DEBIASED_HARDNEG, ADV, INTCL, INTNACL)
# The eleven losses by which most claims are judged: those of the paper's abstract, and others.
CENTRAL = (
    SIMCLR, DEBIASED_HARDNEG, Row(label="MIXNCA(g2, 5, 0.5)", settings=mixnca("g2", 5, 0.5)), INTCL, INTNACL,
)  # fmt: skip
OTHER_LOSSES = (
    DEBIASED, HARDNEG, ADV,
    Row(label="NCA(g0, 5)", settings=nca("g0", 5)),
    Row(label="NCA(g2, 5)", settings=nca("g2", 5)),
    Row(label="MIXNCA(g0, 2, 0.9)", settings=mixnca("g0", 2, 0.9)),
)  # fmt: skip
CLAIM_COLUMNS = (
    *measures("clean", "fgsm", "pgd", "pgd_tuned", "autoattack"),
    Column(label="minutes of training", metric="minutes"),
)
LONG = (
    Row(label="SimCLR", group="NaCl on SimCLR", settings=nca("g0", 1)),
    Row(label="NCA(g0, 2)", group="NaCl on SimCLR", settings=nca("g0", 2)),
    Row(label="MIXNCA(g0, 2, 0.9)", group="NaCl on SimCLR", settings=mixnca("g0", 2, 0.9)),
    Row(label="Debiased+HardNeg", group="NaCl on Debiased+HardNeg", settings=nca("g2", 1)),
    Row(label="NCA(g2, 2)", group="NaCl on Debiased+HardNeg", settings=nca("g2", 2)),
    Row(label="MIXNCA(g2, 2, 0.5)", group="NaCl on Debiased+HardNeg", settings=mixnca("g2", 2, 0.5)),
)
PAPER: tuple[Table, ...] = (
    Table(
        name="main", title="The main claims, under stronger attacks too", rows=CENTRAL,
        columns=CLAIM_COLUMNS, settings=CIFAR,
    ),
    Table(
        name="main_beside", title="Other losses behind the claims", rows=OTHER_LOSSES, columns=CLAIM_COLUMNS,
        settings=CIFAR,
    ),
    Table(
        name="weights", title="The effect of the adversarial weighting on CIFAR-100", settings=CIFAR,
        columns=measures("clean", "fgsm", "pgd"),
        rows=tuple(Row(label=label, settings=loss(**PRESETS["intcl"] | {"weight": weight}))
                   for label, weight in (("IntCl, ŵ", "relative"), ("IntCl, w = 1", "one"))),
    ),
    Table(
        name="table2", title="Table 2: NaCl on SimCLR and on Debiased+HardNeg", settings=CIFAR,
        columns=measures("clean", "fgsm"),
        rows=(*block("g0", None), *block("g2", None), *block("g0", 0.9), *block("g2", 0.5)),
    ),
    Table(
        name="table3", title="Table 3: IntNaCl (M > 1) and IntCl (M = 1)", settings=CIFAR,
        columns=measures("clean", "fgsm"),
        rows=sum((block("g2", lam, alpha=1.0) for lam in (None, 0.5, 0.7, 0.9)), ()),
    ),
    Table(
        name="table4", title="Table 4: NaCl and IntNaCl on TinyImageNet", settings=TINYIMAGENET,
        columns=(Column(label="TinyImageNet clean"), Column(label="TinyImageNet FGSM", metric="fgsm")),
        rows=(
            *block("g0", None, (1, 2)), *block("g2", None, (1, 2)),
            *block("g0", 0.9, (1, 2)), *block("g2", 0.5, (1, 2)),
            *block("g2", 0.5, (1, 2, 5), alpha=1.0), *block("g2", 0.5, (1, 2, 5), alpha=1.0, weight="one"),
        ),
    ),
    complete("nacl_simclr", "Complete: NaCl on SimCLR", "g0", "clean", "fgsm"),
    complete("nacl_debiased_hardneg", "Complete: NaCl on Debiased+HardNeg", "g2", "clean", "fgsm"),
    complete("intnacl", "Complete: NaCl on IntCl", "g2", "clean", "fgsm", alpha=1.0),
    complete("nacl_pgd", "Complete: NaCl on Debiased+HardNeg, with PGD", "g2", "clean", "fgsm", "pgd"),
    Table(
        name="more_epochs", title="Longer training: CIFAR-100 accuracy by epochs", rows=LONG, settings=CIFAR,
        columns=by_epochs("clean", "{} epochs"),
    ),
    Table(
        name="supervised", title="The supervised baseline (the paper does not state its augmentation)",
        settings={**CIFAR, "train.epochs": 1000}, columns=measures("clean", "fgsm", "pgd"),
        rows=(
            Row(label="supervised, views of contrastive training", settings=SUPERVISED),
            Row(label="supervised, crop and flip only", settings={**SUPERVISED, "augment": "crop_flip"}),
        ),
    ),
    Table(
        name="figure1", title="Figure 1: accuracy against robustness", rows=SEVEN, settings=CIFAR,
        figure="scatter",
        columns=tuple(
            replace(column, panel="CIFAR-100" if column.dataset == "cifar100" else "transfer to CIFAR-10")
            for column in measures("clean", "fgsm")
        ),
    ),
    Table(
        name="figure_lambda", title="Accuracy as a function of λ (M = 1, the baseline, has no λ)",
        settings=CIFAR, figure="curves", x_label="λ",
        columns=tuple(
            replace(column, label=f"{column.label}, λ = {lam}", panel=column.label, x=lam,
                    settings=loss(nacl="mixnca", lam=lam))
            for column in measures("clean", "fgsm") for lam in LAMBDAS
        ),
        rows=tuple(Row(label=f"M = {m}", group=f"MIXNCA({g})", settings=nca(g, m))
                   for g in ("g0", "g2") for m in POSITIVES),
    ),
    Table(
        name="figure_eps", title="Accuracy under FGSM of different strengths", settings=CIFAR,
        figure="curves", x_label="FGSM ε (pixels in [0, 1])",
        columns=tuple(Column(label=f"FGSM {eps}", metric="fgsm", dataset="cifar100", eps=eps, x=eps)
                      for eps in STRENGTHS),
        rows=(
            *(replace(row, group="the paper's figure") for row in SEVEN),
            *(replace(row, group="NaCl alone") for row in (*CENTRAL, *OTHER_LOSSES) if row not in SEVEN),
        ),
    ),
    Table(
        name="figure_runtime", title="Accuracy with extended runtime", rows=LONG, settings=CIFAR,
        columns=(*by_epochs("clean", "{} epochs"), *by_epochs("minutes", "minutes for {} epochs")),
        figure="runtime", x_label="epochs of training",
    ),
)  # fmt: skip


def tables_of(scale: str, tables: Sequence[Table] = PAPER) -> tuple[Table, ...]:
    """Return tables, by default the paper's, at full scale or as tiny runs that only check the machinery."""
    check_choice("scale", scale, SCALES)
    return tuple(tables) if scale == "paper" else tuple(map(shrink, tables))


def shrink(table: Table) -> Table:
    """Return the same rows and columns as tiny runs on the digits, which say nothing about the paper.

    Columns that only differ in their data set become one. The epochs of rows and columns become 1, 2, 3 … in
    their order, so that longer trainings still continue shorter ones.
    """
    parts: list[Row | Column] = [*table.rows, *table.columns]
    milestones = sorted({part.settings["train.epochs"] for part in parts if "train.epochs" in part.settings})
    settings = {**table.settings, **TINY}
    if "holdout" in settings:
        settings["holdout"] = TINY_HOLDOUT

    def shorten(settings: Settings) -> dict[str, Any]:
        if "train.epochs" not in settings:
            return dict(settings)
        return {**settings, "train.epochs": milestones.index(settings["train.epochs"]) + 1}

    columns = []
    for column in table.columns:
        if column.dataset == "cifar10":
            continue
        own, label, x = shorten(column.settings), column.label, column.x
        if "train.epochs" in own:
            before, epochs = column.settings["train.epochs"], own["train.epochs"]
            label = label.replace(f"{before} epochs", f"{epochs} epochs")
            x = epochs if x == before else x
        label = label.replace("TinyImageNet", "digits").replace("CIFAR-100", "digits")
        panel = column.panel.replace("CIFAR-100", "digits")
        columns.append(replace(column, dataset=None, label=label, panel=panel, x=x, settings=own))
    rows = tuple(replace(row, settings=shorten(row.settings)) for row in table.rows)
    return replace(table, settings=settings, rows=rows, columns=tuple(columns))


def pick(tables: tuple[Table, ...], names: tuple[str, ...]) -> tuple[Table, ...]:
    """Return the tables of these names; a number N means the paper's main table N."""
    known = {table.name: table for table in tables}
    chosen = dict.fromkeys(f"table{name}" if f"table{name}" in known else name for name in names)
    for name in chosen:
        check_choice("table", name, known)
    if not chosen:
        raise InputError("give a --table or --all; `--list` shows the tables.")
    return tuple(known[name] for name in chosen)
