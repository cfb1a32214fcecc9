"""One model, one loop: its configuration, steps, loss, state and reports.

from minitrain.training import TrainConfig, train
train(model, loader, TrainConfig(steps=1000))
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "train": "loop",
    "evaluate": "loop",
    "TrainConfig": "loop",
    "TrainState": "state",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
