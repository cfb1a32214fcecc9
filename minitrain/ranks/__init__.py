"""The runtime of ranks: processes that are launched, talk through a group, and say what they wait
for.

    a launch      launch ▸ payload, source ▸ crew ▸ reload ▸ process ▸ process_group ▸ group
    a call        group ▸ work ▸ flight_recorder, source ▸ torch ▸ work (stamps: measure/traffic.py)
    a failure     flight_recorder ▸ crew ▸ hang_report ▸ errors
    torchrun      launch ▸ in_place ▸ sigterm, process_group ▸ group
"""
