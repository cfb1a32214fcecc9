"""The Transformer, its configurations, and hub checkpoints.

    from minitrain.model import build, preset
    model = build(preset("1M"))

    config       the shape, checked; presets        norm, rope, mlp   its smaller parts
    transformer  blocks and the model               attention, experts
    hub          Hugging Face's, GGUF's and llama2.c's files
    swap         replaces layers of any model

Shapes, beside the course's legend: `K key/value heads  C size of a head  F width in the MLP`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "preset": "config",
    "build": "transformer",
    "load_pretrained": "hub.load",
    "save_pretrained": "hub.load",
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    """Imports a name from its module on first use, so that importing one file loads no other."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
