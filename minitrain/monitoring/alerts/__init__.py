"""Alerting: expressions, rules with their sources, their state over time."""
