"""The paper, runnable: its grid of runs, the runner, and the report."""
