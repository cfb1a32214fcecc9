"""The cost of a run: prices, own or rent, goodput, the Pareto front."""
