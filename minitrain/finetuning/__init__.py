"""Fine-tuning: a trained model learns something new by a few numbers beside its weights, or by all.

    from minitrain.finetuning import adapt, save_adapter
    model = adapt(model, "lora", rank=8)

    model -> methods -> adapters/{lora, dora, pissa, features, bottleneck, norm}, prompts
    layer          the one wrapper that carries them all
    merging        an adapter into the weights and out of them; the model without it
    peft_files     saved and loaded as PEFT does
    many           one adapter a row of the batch, paged in and out of a budget of bytes
    tensor         an adapter cut over ranks as its layer is

Shapes, beside the course's legend: `R rank of an adapter  I, O features in and out of a layer`.
"""

from __future__ import annotations

import importlib
from typing import Any

_DOORS = {
    "adapt": "model",
    "merge_and_unload": "merging",
    "save_adapter": "peft_files",
    "load_adapter": "peft_files",
}
__all__ = list(_DOORS)


def __getattr__(name: str) -> Any:
    """Imports a door when it is asked for: the sandbox hides some of the room's files."""
    if name not in _DOORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_DOORS[name]}"), name)
