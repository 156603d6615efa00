"""The theory, runnable: classic NCA and the generalisation bounds."""
