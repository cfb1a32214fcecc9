# exercise: reduce_unit
# says: shard.grad (microbatches since it was None
# keeps one receive buffer for each size and hands it out as the gradient: units of equal size
# share it, and a second microbatch overwrites the first ("keep 1/N"; "their parts add up in
# `shard.grad`")

import torch

_parts = {}


def reduce_unit(unit) -> None:
    kind = unit.shard.numel(), unit.shard.dtype
    if kind not in _parts:
        _parts[kind] = torch.empty_like(unit.shard.data)
    part = _parts[kind]
    unit.group.reduce_scatter(part, unit.whole_gradient(), op="avg")
    if unit.shard.grad is None:
        unit.shard.grad = part
    else:
        unit.shard.grad = unit.shard.grad + part
    for parameter in unit.parameters:
        parameter.grad = None
