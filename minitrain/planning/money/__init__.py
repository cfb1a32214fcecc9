"""What a run costs: prices, ownership, goodput, the Pareto front."""
