"""The meters: bytes held, seconds, FLOPs, bytes sent."""
