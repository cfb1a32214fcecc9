"""Methods that reduce the rounding error, before or while a model's weights are rounded."""
