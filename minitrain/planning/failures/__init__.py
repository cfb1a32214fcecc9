"""Failures on paper: how often, how often to save, and a cluster's months replayed in seconds."""
