"""Numbers of 16 to 4 bits: loss scaling, master weights, the FP8 and block formats, and linear
layers that use them.
"""
