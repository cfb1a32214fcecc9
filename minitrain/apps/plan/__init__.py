"""`minitrain plan`: the best plan, fronts, owning or renting, predictions, validation."""
