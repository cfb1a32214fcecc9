"""Continuous batching: requests come and go at any step, and one rule serves them all."""
