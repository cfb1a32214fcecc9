"""The Transformer, its configurations, and hub checkpoints.

    from minitrain.model import build, preset
    model = build(preset("1M"))

    config       the shape, checked; presets        norm, rope, mlp   its smaller parts
    transformer  blocks and the model               attention, experts
    architectures  other layers than attention, and hybrid models
    hub          Hugging Face's, GGUF's and llama2.c's files
    swap         replaces layers of any model

Shapes, beside the course's legend: `K key/value heads  C size of a head  F width in the MLP`.
"""

from minitrain.doors import doors

__getattr__ = doors(
    __name__,
    {
        "preset": "config",
        "build": "transformer",
        "load_pretrained": "hub.load",
        "save_pretrained": "hub.load",
    },
)
