"""Evaluators: each takes a model or features, labels and settings, and returns figures; none writes files."""
