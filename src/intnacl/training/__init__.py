"""The training loop and what it stands on: ranks, checkpoints, objectives."""
