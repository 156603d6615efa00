"""Pictures in: data sets, and the views that a training step sees of them."""
