"""ZeRO: optimizer state, gradients and parameters sharded over ranks; as in lab e03, and in full.

from minitrain.parallel.zero import Zero, Zero3, ZeroOptimizer, full_state_dict
"""

from minitrain.doors import doors

__getattr__ = doors(
    __name__,
    {
        "Zero": "sharded",
        "Zero3": "stage_3",
        "ZeroOptimizer": "optimizer",
        "full_state_dict": "state",
    },
)
