"""What a ZeRO run has to keep: each rank's part as it is, all parts as one, or cut for other ranks.

    sharded_state    this rank's pieces, nothing sent; 12 P/N bytes with AdamW
    gathered_state   the same of all ranks, put together unit by unit: on every rank, 12 P bytes
    load_state       from either, whatever the number of ranks that made it

All are {"pieces": {name: {"start", "weight", "exp_avg", …}}, "groups"}: elements start … start + n
of a parameter (the whole one, in its shape, where they were gathered), what the optimizer keeps for
them, and its settings. A piece knows where it belongs: resharding copies what overlaps. Lab: e03.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.errors import InputError
from minitrain.parallel.zero.optimizer import ZeroOptimizer
from minitrain.parallel.zero.sharded import Sharded
from minitrain.parallel.zero.unit import Piece, Unit


def sharded_state(zero: Sharded, optimizer: torch.optim.Optimizer) -> dict:
    """Copies of this rank's own."""
    _arrive(optimizer)
    pieces = {
        name: {
            "start": piece.start,
            **{k: t.clone() for k, t in _tensors(piece, optimizer).items()},
        }
        for unit in zero.units
        for name, piece in unit.pieces.items()
    }
    return {"pieces": pieces, "groups": _settings(optimizer)}


def gathered_state(zero: Sharded, optimizer: torch.optim.Optimizer) -> dict:
    """Whole parameters and their state, on every rank. Collective."""
    _arrive(optimizer)
    kinds = _kinds(zero, optimizer)
    pieces = {name: {"start": 0} for unit in zero.units for name in unit.parameters}
    for unit in zero.units:
        kept = kinds if unit.trains else {"weight": (False, None)}
        for key, (is_scalar, dtype) in kept.items():
            whole = _whole(unit, optimizer, key, dtype or unit.shard.dtype)
            for name, parameter in unit.parameters.items():
                place = unit.places[parameter]
                shape = parameter.shape if key == "weight" else parameter.shape or (1,)
                flat = whole[place.start] if is_scalar else whole[place].view(shape)
                pieces[name][key] = flat.clone()
    return {"pieces": pieces, "groups": _settings(optimizer)}


def load_state(zero: Sharded, optimizer: torch.optim.Optimizer, states: Sequence[dict]) -> None:
    """`states`: one gathered state, or the sharded ones of all ranks that saved, in any order."""
    _arrive(optimizer)
    for unit in zero.units:
        unit.free()
        for name, piece in unit.pieces.items():
            _fill(name, piece, optimizer, [state["pieces"].get(name) for state in states])
        unit.depart()
        if unit.stage < 3:
            unit.gather()
    for group, settings in zip(optimizer.param_groups, states[0]["groups"]):
        group.update(settings)


@torch.no_grad()
def _fill(
    name: str, piece: Piece, optimizer: torch.optim.Optimizer, entries: Sequence[dict | None]
) -> None:
    """Copies into the piece, and into new state, whatever of it the entries have."""
    found, elements = 0, piece.weight.numel()
    for entry in filter(None, entries):
        low = max(piece.start, entry["start"])
        high = min(piece.start + elements, entry["start"] + entry["weight"].numel())
        if low >= high:
            continue
        found += high - low
        for key, source in entry.items():
            if key == "start":
                continue
            if key != "weight" and source.dim() == 0:
                optimizer.state[piece.weight][key] = source.clone()
                continue
            target = _room(piece, optimizer, key, source)
            begin = entry["start"]
            target[low - piece.start : high - piece.start].copy_(
                source.reshape(-1)[low - begin : high - begin]
            )
    if found != elements:
        raise InputError(
            f"the states given have {found} of the {elements} elements of {name} that this "
            "rank needs: give those of all the ranks that saved, each once"
        )


def _room(piece: Piece, optimizer: torch.optim.Optimizer, key: str, like: Tensor) -> Tensor:
    """(n,): where the piece keeps its `key`."""
    if key == "weight":
        return piece.weight.data.view(-1)
    state = optimizer.state[piece.weight]
    if key not in state or state[key].shape != piece.weight.shape:
        state[key] = torch.zeros_like(piece.weight, dtype=like.dtype)
    return state[key].view(-1)


def _tensors(piece: Piece, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What is kept for the piece: (n,) each, or one number."""
    kept = {"weight": piece.weight.data, **optimizer.state.get(piece.weight, {})}
    tensors = {key: value for key, value in kept.items() if isinstance(value, Tensor)}
    return {key: t.view(-1) if t.dim() else t for key, t in tensors.items()}


def _kinds(
    zero: Sharded, optimizer: torch.optim.Optimizer
) -> dict[str, tuple[bool, torch.dtype | None]]:
    """For each tensor kept of a piece: is it one number, and its dtype; as any rank knows it."""
    mine = {
        key: (key != "weight" and tensor.dim() == 0, tensor.dtype)
        for unit in zero.trained
        for piece in unit.pieces.values()
        for key, tensor in _tensors(piece, optimizer).items()
    }
    everyone: list = [None] * zero.group.size
    dist.all_gather_object(everyone, mine, group=zero.group.process_group)
    return {"weight": (False, None)} | {
        key: kind for kinds in everyone for key, kind in kinds.items() if key != "weight"
    }


def _whole(unit: Unit, optimizer: torch.optim.Optimizer, key: str, dtype: torch.dtype) -> Tensor:
    """(S,): all ranks' `key` of the unit; where it is one number, every element has it."""
    own = torch.zeros_like(unit.shard, dtype=dtype)
    for piece in unit.pieces.values():
        own[piece.place] = _tensors(piece, optimizer).get(key, 0)
    return unit.together(own)


def _arrive(optimizer: torch.optim.Optimizer) -> None:
    """What ours keeps in a store comes into memory; torch's has no store."""
    if isinstance(optimizer, ZeroOptimizer):
        optimizer.arrive()


def _settings(optimizer: torch.optim.Optimizer) -> list[dict]:
    return [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
