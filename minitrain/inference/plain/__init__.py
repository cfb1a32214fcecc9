"""Inference as lab e09 writes it: its exercises, the helpers provided, and the main loops."""
