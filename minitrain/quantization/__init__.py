"""Weights in 8 to 2 bits: what a format keeps, how rounding is made to hurt less, what it gains.

    formats    integers, NF4 and FP4, FP8 and MX: codes, scales, packing; a weight and its way back
    layers     linear layers over such a weight: dequantized, integer matmuls, packed kernels
    methods    GPTQ, AWQ, SmoothQuant, rotation, training aware of it

A whole model: `model.py`; its folder: `folder.py`; which layers need the bits: `sensitivity.py`.
Lab e08's plain versions: `plain.py`.
Shapes, beside the course's legend: `D width in  F width out  G groups  g numbers of a group`.
"""
