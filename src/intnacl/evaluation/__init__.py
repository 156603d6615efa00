"""Measurement: every evaluator takes a model or features, labels and a config, and returns figures."""
