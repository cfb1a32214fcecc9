"""Inference as lab e09 writes it: its exercises, the helpers it is given, and the loops around."""
