"""The seconds and bytes of one training step, from its parts: kernels, layers, passes, network."""
