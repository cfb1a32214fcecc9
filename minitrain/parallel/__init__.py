"""Training on many devices: data parallelism, meshes, layouts; a package for each other technique.

from minitrain.parallel import DDP, MeshModel, Zero, Zero3, tensor_parallel
"""

from minitrain.doors import doors

__getattr__ = doors(
    __name__,
    {
        "DDP": "ddp",
        "MeshModel": "hybrid.model",
        "Zero": "zero.sharded",
        "Zero3": "zero.stage_3",
        "tensor_parallel": "tensor.layers",
    },
)
