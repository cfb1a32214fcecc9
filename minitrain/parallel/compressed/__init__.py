"""Training over slow networks: fewer bytes a gradient, or fewer synchronizations.

from minitrain.parallel.compressed import DiLoCo, ParameterServer, PowerSGD, Quantized

Every compressor is a hook of DDP: `DDP(model, group, hook=PowerSGD(rank=4))`.
"""

from minitrain.doors import doors

__getattr__ = doors(
    __name__,
    {
        "DiLoCo": "diloco",
        "ParameterServer": "server",
        "PowerSGD": "powersgd",
        "Quantized": "quantized",
    },
)
