"""ZeRO: optimizer state, gradients and parameters sharded over the ranks of data parallelism."""
