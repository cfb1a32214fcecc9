"""Optimizers, each written out and then fast: AdamW, SGD, Lion, Adafactor, 8-bit Adam; groups,
clipping, learning rates.
"""
