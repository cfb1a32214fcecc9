"""Continuous batching: requests come and go at any step, and one rule schedules all of them."""
