"""Attention: grouped queries, masks, and the tiled kernels that never hold the whole matrix of
scores.
"""
