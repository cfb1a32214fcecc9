"""Adapters under tensor parallelism: each is cut as its layer is, or whole where that is whole."""
