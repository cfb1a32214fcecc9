"""Memory of a step: activations recomputed, placed or offloaded, optimizer state on the CPU or
disk.
"""
