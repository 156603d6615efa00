"""Training: settings, objectives, the update, the loop, checkpoints, the log, and ranks."""
