"""Checkpoints of the Hugging Face hub: configuration and weights, both ways."""
