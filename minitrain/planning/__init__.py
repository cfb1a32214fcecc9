"""On paper, before the money is spent: memory, time, cost and scaling laws of a training run."""
