"""Optimizers, each in plain and in fast form: AdamW, SGD, Lion, Adafactor, 8-bit Adam; parameter
groups, clipping, learning rates.

    from minitrain.optimizers import Adam8bit, parameter_groups
    Adam8bit(parameter_groups(model, weight_decay=0.1), lr=1e-3)
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "AdamW": "adamw",
    "Adam8bit": "adam8bit",
    "parameter_groups": "groups",
    "warmup_cosine": "learning_rate",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
