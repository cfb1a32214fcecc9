"""The runtime of ranks: launched processes that communicate in a group and report their waits.

from minitrain.ranks.launch import launch
from minitrain.ranks import Group, RankError, group_from_torch

a launch      launch ▸ payload, source ▸ crew ▸ process ▸ group
a call        group ▸ work ▸ flight_recorder, source ▸ torch ▸ work (stamps: measure/traffic.py)
a failure     flight_recorder ▸ crew ▸ hang_report ▸ errors
torchrun      launch ▸ in_place ▸ sigterm, group
"""

from importlib import import_module
from typing import Any

_HOMES = {"Group": "group", "RankError": "errors", "group_from_torch": "in_place"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
