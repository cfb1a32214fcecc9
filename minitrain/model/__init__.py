"""The Transformer, its shapes, and checkpoints of the hub.

Shapes, beside the course's legend: `K key/value heads  C size of a head  F width in the MLP`.
"""
