"""One model, one loop: loss, steps, state, configuration, report."""
