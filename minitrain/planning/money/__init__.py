"""The cost of a run: prices, ownership, goodput, the Pareto front."""
