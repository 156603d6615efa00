"""The paper, runnable: its grid of runs, the workers that execute them, and the report."""
