"""Runs in which something goes wrong, from a seed: what a set of rules is worth."""
