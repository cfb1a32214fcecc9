"""Attention: grouped queries, masks, and tiled kernels that never materialize the full scores."""
