"""Tensor parallelism: matmuls, heads and the vocabulary split over ranks, with sequence parallelism
in between.
"""
