"""Runs that survive: checkpoints that are written whole or not at all."""
