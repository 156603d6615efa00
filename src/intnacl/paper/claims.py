"""What the paper claims in its abstract and section 4, judged by the runs of a record.

A claim is a list of comparisons "this loss over that one" of a figure. With n_a and n_b seeds a difference of
means is told from zero if it is larger than t = 2·s·√(1/n_a + 1/n_b), where s is the deviation of that figure
over seeds, pooled over all losses of the claims that have several and over the paper's trials. From the
paper's own difference, whose means are of 5 trials each, it is told if it is further than
2·s·√(1/n_a + 1/n_b + 2/5).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from intnacl.losses.integrated import PRESETS
from intnacl.paper.cells import Cell, Run, cell_of, figure, pooled
from intnacl.paper.grid import BESIDE, CENTRAL, CIFAR, LAMBDAS, loss, mixnca
from intnacl.paper.published import TRIALS
from intnacl.paper.run_names import canonical
from intnacl.runs.config import RunConfig, resolve

LOSSES: dict[str, Mapping[str, Any]] = {
    **{row.label: row.settings for row in (*CENTRAL, *BESIDE)},
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
Figure = tuple[str, str]  # data set, metric


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What is said, and which losses it is about."""

    where: str
    text: str
    pairs: tuple[tuple[str, str], ...]
    """(the better loss, the other one)."""
    figures: tuple[Figure, ...]
    kind: str = "more"
    """more: better; as_much: better by as much as the paper's figures say; no_less: not told to be worse."""


def over(better: Iterable[str], others: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Every one of the first over every one of the others."""
    others = tuple(others)
    return tuple((a, b) for a in better for b in others)


CLAIMS = (
    Claim(
        where="abstract", text="The proposed losses outperform the existing ones (here: without attack).",
        pairs=over(("MIXNCA(g2, 5, 0.5)", "IntNaCl"), EXISTING), figures=CLEAN,
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
        pairs=over(("IntCl",), EXISTING), figures=CLEAN[:1], kind="no_less",
    ),
    Claim(
        where="4.1", text="IntCl's standard accuracy on CIFAR-10 is below HardNeg's and Debiased+HardNeg's.",
        pairs=over(("HardNeg", "Debiased+HardNeg"), ("IntCl",)), figures=CLEAN[1:],
    ),
    Claim(
        where="4.1", text="IntNaCl wins over the baselines on both data sets, standard and robust.",
        pairs=over(("IntNaCl",), EXISTING), figures=(*CLEAN, *FGSM),
    ),
    Claim(
        where="4.1", text="It does so by a large margin (here: the paper's, where it states one).",
        pairs=over(("IntNaCl",), ("SimCLR", "Debiased+HardNeg")), figures=(*CLEAN, *FGSM), kind="as_much",
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
        pairs=over(("MIXNCA(g2, 2, 0.5)",), [f"MIXNCA(g2, 2, {lam})" for lam in LAMBDAS[1:]]), figures=CLEAN,
    ),
    Claim(
        where="4.3", text="NaCl on Debiased+HardNeg does better than NaCl on SimCLR.",
        pairs=(("NCA(g2, 5)", "NCA(g0, 5)"), ("MIXNCA(g2, 2, 0.9)", "MIXNCA(g0, 2, 0.9)")),
        figures=(*CLEAN, *FGSM),
    ),
    Claim(
        where="4.3",
        text="The weighting ŵ does better than w = 1 (here: ŵ over its mean; there: TinyImageNet).",
        pairs=(("IntCl", "IntCl with w = 1"),), figures=(CLEAN[0], FGSM[0]),
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A comparison in figures: ours less theirs, in percentage points."""

    pair: tuple[str, str]
    figure: Figure
    kind: str
    measured: float | None
    told: float | None
    """t: what the seeds can tell from zero."""
    paper: float | None
    told_from_paper: float | None
    """What both can tell from `paper`."""
    seeds: tuple[int, int]
    """Of the two losses."""

    @property
    def verdict(self) -> str:
        """yes, no, partly (better, but by less than the paper says), untold or missing."""
        if self.measured is None or self.told is None:
            return "missing"
        if self.kind == "no_less":
            return "yes" if self.measured >= -self.told else "no"
        if self.kind == "as_much" and self._is_less_than_papers:
            return "partly" if self.measured > self.told else "no"
        if abs(self.measured) <= self.told:
            return "untold"
        return "yes" if self.measured > 0 else "no"

    @property
    def _is_less_than_papers(self) -> bool:
        if self.measured is None or self.paper is None or self.told_from_paper is None:
            return False
        return self.measured < self.paper - self.told_from_paper

    def __str__(self) -> str:
        name = f"{self.pair[0]} over {self.pair[1]}, {FIGURES[self.figure]}"
        paper = [] if self.paper is None else [f"paper {_signed(self.paper)}"]
        if self.measured is None or self.told is None:
            return f"{name}: missing{_bracketed(paper)}"
        seeds = "n = {} and {}".format(*self.seeds)
        return f"{name}: {_signed(self.measured)} ± {self.told:.2f}{_bracketed([seeds, *paper])}"


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A claim and what the runs say of it."""

    claim: Claim
    differences: tuple[Difference, ...]

    @property
    def verdict(self) -> str:
        """One phrase; "so far" where comparisons are missing."""
        found = [d.verdict for d in self.differences if d.verdict != "missing"]
        if not found:
            return "not measured yet"
        every = len(self.differences)
        end = f" so far ({len(found)} of {every})" if len(found) < every else ""
        if set(found) == {"yes"}:
            return f"holds{end}"
        if set(found) == {"untold"}:
            return f"within chance{end}"
        return f"{'holds in part' if {'yes', 'partly'} & set(found) else 'does not hold'}{end}"


def measured_claims(runs: Mapping[str, Run]) -> list[Judgement]:
    """All claims if anything is known of any, else none."""
    found = judge(runs)
    return found if any(d.verdict != "missing" for one in found for d in one.differences) else []


def judge(runs: Mapping[str, Run]) -> list[Judgement]:
    """Every claim, by the record's runs of the paper's setting and our recipe."""
    own = [run for run in runs.values() if not run.departures and not run.choices]
    cell = cache(lambda name, figure: _cell(own, LOSSES[name], figure))
    spread = cache(lambda figure: pooled(s for name in LOSSES for s in cell(name, figure).spreads))

    def difference(claim: Claim, pair: tuple[str, str], figure: Figure) -> Difference:
        a, b, s = cell(pair[0], figure), cell(pair[1], figure), spread(figure)
        return Difference(
            pair=pair, figure=figure, kind=claim.kind, measured=_less(a.mean, b.mean),
            told=_told(s, a.n, b.n), told_from_paper=_told(s, a.n, b.n, TRIALS, TRIALS),
            paper=_less(*(one.published.mean if one.published else None for one in (a, b))), seeds=(a.n, b.n),
        )  # fmt: skip

    return [
        Judgement(
            claim=claim,
            differences=tuple(difference(claim, pair, f) for pair in claim.pairs for f in claim.figures),
        )
        for claim in CLAIMS
    ]


def _told(s: float | None, *trials: int) -> float | None:
    """Twice the standard error of a sum or difference of means over so many trials each."""
    return 2 * s * math.sqrt(sum(1 / n for n in trials)) if s is not None and all(trials) else None


def _cell(runs: Iterable[Run], settings: Mapping[str, Any], of: Figure) -> Cell:
    """A loss's figure over seeds, after the paper's 100 epochs; of a seed's runs, one that has the figure."""
    wanted, (dataset, metric) = canonical(resolve({**CIFAR, **settings})), of
    column = {"dataset": dataset, "metric": metric, "eps": None}
    same = [run for run in runs if _same_loss(run.config, wanted) and _comparable(run.config, wanted, metric)]
    same.sort(key=lambda run: figure(run.result, dataset, column) is not None)  # later ones count
    return cell_of({str(run.config.seed): run for run in same}, wanted, column)


def _same_loss(config: RunConfig, wanted: RunConfig) -> bool:
    alike = config.loss == wanted.loss and config.train.epochs == wanted.train.epochs
    return alike and (config.dataset, config.objective) == (wanted.dataset, wanted.objective)


def _comparable(config: RunConfig, wanted: RunConfig, metric: str) -> bool:
    """Accuracies under attack are those at a run's first radius: another one than the paper's is no match."""
    return metric == "clean" or config.evaluation.eps[:1] == wanted.evaluation.eps[:1]


def _less(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _bracketed(notes: Iterable[str]) -> str:
    text = "; ".join(notes)
    return f" ({text})" if text else ""


def _signed(points: float) -> str:
    return f"{points:+.2f}".replace("-", "−")
