"""The runtime of ranks: launched processes that communicate in a group and report their waits.

    from minitrain.ranks.launch import launch
    from minitrain.ranks import Group, RankError, group_from_torch

a launch      launch ▸ payload, source ▸ crew ▸ process ▸ group
a call        group ▸ work ▸ flight_recorder, source ▸ torch ▸ work (stamps: measure/traffic.py)
a failure     flight_recorder ▸ crew ▸ hang_report ▸ errors
torchrun      launch ▸ in_place ▸ sigterm, group
"""

from minitrain.doors import doors

__getattr__ = doors(
    __name__,
    {
        "Group": "group",
        "RankError": "errors",
        "group_from_torch": "in_place",
    },
)
