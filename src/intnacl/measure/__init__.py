"""Measuring a run folder: probes, kNN and attacks as resumable parts, then `result.json` and a page."""

from intnacl.measure.pipeline import measure, run

__all__ = ["measure", "run"]
