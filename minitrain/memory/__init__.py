"""What a step holds: activations recomputed, placed or offloaded, optimizer state on the CPU or
the disk.
"""
