"""What is done to a model before or while its weights are rounded, so that it computes the same."""
