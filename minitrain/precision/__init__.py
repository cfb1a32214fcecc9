"""Numbers of 16 to 4 bits: loss scaling, master weights, linear layers in FP8 and block formats.

    from minitrain.precision import convert, follow
    from minitrain.precision.low_bit_linear import DEEPSEEK
    follow(convert(model, DEEPSEEK), optimizer)

loss_scaling    FP16             master_weights   BF16
formats         casts to 8 or 4 bits                   blocks   tiles that share a scale
delayed_scaling scales from past steps
low_bit_linear  layers whose matmuls are quantized
"""

from minitrain.doors import doors

__getattr__ = doors(
    __name__,
    {
        "LossScaler": "loss_scaling",
        "MasterWeights": "master_weights",
        "convert": "low_bit_linear",
        "follow": "low_bit_linear",
    },
)
