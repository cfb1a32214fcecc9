"""Tensor parallelism: matmuls, heads and the vocabulary cut over ranks; sequence parallelism
between them.
"""
