"""Memory of a step: activations recomputed or offloaded; optimizer state on CPU or disk.

    from minitrain.memory import Offload, checkpoint
    y = checkpoint(block, x)

recompute   a function's activations, dropped and recomputed    selective   all but its matmuls
segments    the same for a Transformer's blocks                 placement   which blocks
activation_offload   tensors saved for backward, in CPU memory
optimizer_offload    optimizer state, in `stores`: CPU memory or files
paged_optimizer      unified memory, simulated page by page
"""

from minitrain.doors import doors

__getattr__ = doors(
    __name__,
    {
        "checkpoint": "recompute",
        "optimal_plan": "placement",
        "Offload": "activation_offload",
        "paged": "paged_optimizer",
    },
)
