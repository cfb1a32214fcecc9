"""Failure rates, checkpoint intervals, and months of a cluster replayed in seconds."""
