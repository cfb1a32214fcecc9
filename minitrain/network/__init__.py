"""The emulated network: links with latency and bandwidth, fabrics, each rank's logical clock.

from minitrain.network import FABRICS, Fabric, Link
"""

from importlib import import_module
from typing import Any

_HOMES = {"FABRICS": "fabric", "Fabric": "fabric", "Link": "links"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
