"""The paper, runnable: its grid of runs, the workers that do them, and the report."""
