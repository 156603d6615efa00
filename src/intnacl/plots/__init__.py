"""Figures: one style, and one place that draws."""
