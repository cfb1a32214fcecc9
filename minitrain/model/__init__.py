"""The Transformer, its shapes, and checkpoints of the hub."""
