"""Training on many devices: data parallelism, meshes, layouts; a package for each other technique.

from minitrain.parallel import DDP, MeshModel, Zero, Zero3, tensor_parallel
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "DDP": "ddp",
    "MeshModel": "hybrid.model",
    "Zero": "zero.sharded",
    "Zero3": "zero.stage_3",
    "tensor_parallel": "tensor.layers",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
