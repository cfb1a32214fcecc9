"""Methods applied to a model before or while its weights are rounded, which keep its function."""
