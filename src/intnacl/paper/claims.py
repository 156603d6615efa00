"""The claims of the paper's abstract and section 4, judged by the runs of a record.

A claim is a list of comparisons of a figure between two losses. With n_a and n_b seeds, a difference of means
is more than chance if it is larger than 2·s·√(1/n_a + 1/n_b), where s is the standard deviation of that
figure over seeds, pooled over all losses of the claims that have several seeds, and over the paper's trials.
It differs from the paper's difference, whose means are over 5 trials each, if it is further away from it than
2·s·√(1/n_a + 1/n_b + 2/5).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from intnacl.losses.config import PRESETS
from intnacl.paper.cells import Cell, RecordedRun, cell_of, figure, pooled
from intnacl.paper.grid import CENTRAL, CIFAR, LAMBDAS, OTHER_LOSSES, loss, mixnca
from intnacl.paper.published import TRIALS
from intnacl.paper.run_names import canonical
from intnacl.paper.tables import Column, Settings
from intnacl.runs.config import RunConfig
from intnacl.runs.resolve import resolve

LOSSES: dict[str, Settings] = {
    **{row.label: row.settings for row in (*CENTRAL, *OTHER_LOSSES)},
    **{f"MIXNCA(g2, 2, {lam})": mixnca("g2", 2, lam) for lam in LAMBDAS},
    "MIXNCA(g0, 2, 0.5)": mixnca("g0", 2, 0.5),
    "IntNaCl with λ = 0.9": loss(**PRESETS["intnacl"] | {"lam": 0.9}),
    "IntCl with w = 1": loss(**PRESETS["intcl"] | {"weight": "one"}),
}
EXISTING = ("SimCLR", "Debiased", "HardNeg", "Debiased+HardNeg", "Adv")
CLEAN, FGSM = (("cifar100", "clean"), ("cifar10", "clean")), (("cifar100", "fgsm"), ("cifar10", "fgsm"))
FIGURES = {
    ("cifar100", "clean"): "CIFAR-100", ("cifar10", "clean"): "CIFAR-10",
    ("cifar100", "fgsm"): "CIFAR-100 under FGSM", ("cifar10", "fgsm"): "CIFAR-10 under FGSM",
}  # fmt: skip
DataAndMetric = tuple[str, str]
"""A data set and a metric."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of the paper, and the comparisons of losses that express it."""

    where: str
    text: str
    pairs: tuple[tuple[str, str], ...]
    """(the better loss, the other one)."""
    figures: tuple[DataAndMetric, ...]
    kind: str = "more"
    """more: better; as_much: better by at least the paper's difference, within chance; no_less: not worse."""


def all_pairs(better: Iterable[str], others: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Pair every one of the first with every one of the others."""
    others = tuple(others)
    return tuple((a, b) for a in better for b in others)


CLAIMS = (
    Claim(
        where="abstract", text="The proposed losses outperform the existing ones (here: without attack).",
        pairs=all_pairs(("MIXNCA(g2, 5, 0.5)", "IntNaCl"), EXISTING), figures=CLEAN,
    ),
    Claim(
        where="abstract", text="Standard accuracy improves by up to 6 %.",
        pairs=(("MIXNCA(g2, 5, 0.5)", "SimCLR"),), figures=CLEAN[:1], kind="as_much",
    ),
    Claim(
        where="abstract", text="Robust accuracy improves by up to 17 %.",
        pairs=(("IntNaCl", "SimCLR"),), figures=FGSM, kind="as_much",
    ),
    Claim(
        where="4.1", text="NCA and MIXNCA improve upon their baselines (M = 1) in all metrics.",
        pairs=(("NCA(g0, 5)", "SimCLR"), ("MIXNCA(g0, 2, 0.9)", "SimCLR"), ("NCA(g2, 5)", "Debiased+HardNeg"),
               ("MIXNCA(g2, 5, 0.5)", "Debiased+HardNeg")), figures=(*CLEAN, *FGSM),
    ),
    Claim(
        where="4.1", text="With the robust term too, λ = 0.5 gains a lot from M = 1 to M = 5.",
        pairs=(("IntNaCl", "IntCl"),), figures=CLEAN[:1], kind="as_much",
    ),
    Claim(
        where="4.1", text="With the robust term, λ = 0.9 gains less than λ = 0.5.",
        pairs=(("IntNaCl", "IntNaCl with λ = 0.9"),), figures=CLEAN[:1],
    ),
    Claim(
        where="4.1", text="IntCl does not sacrifice standard accuracy on CIFAR-100.",
        pairs=all_pairs(("IntCl",), EXISTING), figures=CLEAN[:1], kind="no_less",
    ),
    Claim(
        where="4.1", text="IntCl's standard accuracy on CIFAR-10 is below HardNeg's and Debiased+HardNeg's.",
        pairs=all_pairs(("HardNeg", "Debiased+HardNeg"), ("IntCl",)), figures=CLEAN[1:],
    ),
    Claim(
        where="4.1", text="IntNaCl wins over the baselines on both data sets, standard and robust.",
        pairs=all_pairs(("IntNaCl",), EXISTING), figures=(*CLEAN, *FGSM),
    ),
    Claim(
        where="4.1", text="It does so by a large margin (here: the paper's margin, where it states one).",
        pairs=all_pairs(("IntNaCl",), ("SimCLR", "Debiased+HardNeg")), figures=(*CLEAN, *FGSM),
        kind="as_much",
    ),
    Claim(
        where="4.2", text="The robust term lifts robust accuracy where M = 1.",
        pairs=(("IntCl", "Debiased+HardNeg"),), figures=FGSM, kind="as_much",
    ),
    Claim(
        where="4.2", text="The robust term lifts robust accuracy where M > 1.",
        pairs=(("IntNaCl", "MIXNCA(g2, 5, 0.5)"),), figures=FGSM, kind="as_much",
    ),
    Claim(
        where="4.3", text="Standard accuracy rises with M.",
        pairs=(("MIXNCA(g2, 2, 0.5)", "Debiased+HardNeg"), ("MIXNCA(g2, 5, 0.5)", "MIXNCA(g2, 2, 0.5)")),
        figures=CLEAN,
    ),
    Claim(
        where="4.3", text="On SimCLR, accuracy rises with λ (here: from 0.5 to 0.9).",
        pairs=(("MIXNCA(g0, 2, 0.9)", "MIXNCA(g0, 2, 0.5)"),), figures=(*CLEAN, *FGSM),
    ),
    Claim(
        where="4.3", text="On Debiased+HardNeg, standard accuracy falls as λ grows.",
        pairs=all_pairs(("MIXNCA(g2, 2, 0.5)",), [f"MIXNCA(g2, 2, {lam})" for lam in LAMBDAS[1:]]),
        figures=CLEAN,
    ),
    Claim(
        where="4.3", text="NaCl on Debiased+HardNeg does better than NaCl on SimCLR.",
        pairs=(("NCA(g2, 5)", "NCA(g0, 5)"), ("MIXNCA(g2, 2, 0.9)", "MIXNCA(g0, 2, 0.9)")),
        figures=(*CLEAN, *FGSM),
    ),
    Claim(
        where="4.3",
        text="The weighting ŵ does better than w = 1 (here: ŵ over its mean; the paper: on TinyImageNet).",
        pairs=(("IntCl", "IntCl with w = 1"),), figures=(CLEAN[0], FGSM[0]),
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The figure of the first loss of a pair minus that of the second, in percentage points."""

    pair: tuple[str, str]
    figure: DataAndMetric
    kind: str
    measured: float | None
    chance: float | None
    """The largest difference from zero that chance can explain."""
    paper: float | None
    chance_from_paper: float | None
    """The largest difference from `paper` that chance can explain."""
    seeds: tuple[int, int]
    """Number of seeds of each loss."""

    @property
    def verdict(self) -> str:
        """The verdict on the claim.

        yes; no; partly: better, but by less than in the paper; unclear: chance can explain it; missing.
        """
        if self.measured is None or self.chance is None:
            return "missing"
        if self.kind == "no_less":
            return "yes" if self.measured >= -self.chance else "no"
        least = -math.inf
        if self.kind == "as_much" and self.paper is not None and self.chance_from_paper is not None:
            least = self.paper - self.chance_from_paper
        if self.measured < least:
            return "partly" if self.measured > self.chance else "no"
        if abs(self.measured) <= self.chance:
            return "unclear"
        return "yes" if self.measured > 0 else "no"

    def __str__(self) -> str:
        measured, notes = "missing", []
        if self.measured is not None and self.chance is not None:
            measured = f"{_signed(self.measured)} ± {self.chance:.2f}"
            notes.append("n = {} and {}".format(*self.seeds))
        if self.paper is not None:
            notes.append(f"paper {_signed(self.paper)}")
        bracket = f" ({'; '.join(notes)})" if notes else ""
        return f"{self.pair[0]} over {self.pair[1]}, {FIGURES[self.figure]}: {measured}{bracket}"


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A claim and its measured comparisons."""

    claim: Claim
    differences: tuple[Difference, ...]

    @property
    def verdict(self) -> str:
        """A summary of its comparisons in one phrase, with "so far" while some are missing."""
        found = [d.verdict for d in self.differences if d.verdict != "missing"]
        if not found:
            return "not measured yet"
        every = len(self.differences)
        end = f" so far ({len(found)} of {every})" if len(found) < every else ""
        if set(found) == {"yes"}:
            return f"holds{end}"
        if set(found) == {"unclear"}:
            return f"within chance{end}"
        return f"{'holds in part' if {'yes', 'partly'} & set(found) else 'does not hold'}{end}"


def measured_claims(runs: Mapping[str, RecordedRun]) -> list[Judgement]:
    """Judge all claims; return an empty list if no comparison has been measured."""
    found = judge(runs)
    return found if any(d.verdict != "missing" for one in found for d in one.differences) else []


def judge(runs: Mapping[str, RecordedRun]) -> list[Judgement]:
    """Judge every claim by the record's runs in the paper's setting and with our recipe."""
    own = [run for run in runs.values() if not run.departures and not run.choices]
    cell = cache(lambda name, on: _cell(own, LOSSES[name], on))
    spread = cache(lambda on: pooled(s for name in LOSSES for s in cell(name, on).spreads))

    def difference(claim: Claim, pair: tuple[str, str], on: DataAndMetric) -> Difference:
        a, b, s = cell(pair[0], on), cell(pair[1], on), spread(on)
        chance, chance_from_paper = (
            2 * s * math.sqrt(sum(1 / n for n in trials)) if s is not None and all(trials) else None
            for trials in ((a.n, b.n), (a.n, b.n, TRIALS, TRIALS))
        )
        return Difference(
            pair=pair,
            figure=on,
            kind=claim.kind,
            measured=None if a.mean is None or b.mean is None else a.mean - b.mean,
            chance=chance,
            paper=a.published.mean - b.published.mean if a.published and b.published else None,
            chance_from_paper=chance_from_paper,
            seeds=(a.n, b.n),
        )

    return [
        Judgement(
            claim=claim,
            differences=tuple(difference(claim, pair, on) for pair in claim.pairs for on in claim.figures),
        )
        for claim in CLAIMS
    ]


def _cell(runs: Iterable[RecordedRun], settings: Settings, on: DataAndMetric) -> Cell:
    """Return a loss's figure over seeds, after the paper's 100 epochs.

    Under attack, runs whose first radius differs from the paper's do not count. Among several runs with the
    same seed, one that has the figure is used.
    """
    wanted, (dataset, metric) = canonical(resolve({**CIFAR, **settings})), on

    def compared(config: RunConfig) -> tuple[object, ...]:
        radius = None if metric == "clean" else config.evaluation.eps[:1]
        return config.dataset, config.objective, config.loss, config.train.epochs, radius

    same = [run for run in runs if compared(run.config) == compared(wanted)]
    # Sorted so that a run with the figure comes last, and replaces others of its seed.
    same.sort(key=lambda run: figure(run.result, dataset, metric).value is not None)
    column = Column(label="", metric=metric, dataset=dataset)
    return cell_of({str(run.config.seed): run for run in same}, wanted, column)


def _signed(points: float) -> str:
    return f"{points:+.2f}".replace("-", "−")
