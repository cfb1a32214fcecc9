"""Scaling laws: runs, their fit, and the best size for a budget."""
