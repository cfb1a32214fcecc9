"""The state of a sharded model: whole, under the model's own names, or rank by rank.

    state = full_state_dict(zero, root=0)        # on rank 0; for AutoModel and torch.load
    load_full_state_dict(zero, state, root=0)    # each rank takes its part from rank 0

Collective, one unit at a time: besides the result a rank holds one unit, S elements. To resume a
run, use a checkpoint that has the optimizer's state too; it gathers nothing:

    save_checkpoint(run, TrainState(zero, optimizer, loader), ranks=…, layout=zero_layout(zero))
    load_checkpoint(run, …, layout=zero_layout(zero))     other N, other stage, or one process

Every rank saves its own pieces, 12 P/N bytes with AdamW, and any number of ranks can read them.
A piece is a run of a flattened parameter's elements, which is a few boxes of the parameter
(reliability/checkpoint/placement). Labs: e03, e12.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.errors import InputError
from minitrain.parallel.zero.optimizer import ZeroOptimizer
from minitrain.parallel.zero.sharded import Sharded
from minitrain.parallel.zero.unit import Piece
from minitrain.reliability.checkpoint.contents import CheckpointRanks, Layout
from minitrain.reliability.checkpoint.placement import Place, Placed, range_place, whole_place
from minitrain.training.state import TrainState


@torch.no_grad()
def full_state_dict(zero: Sharded, root: int | None = None) -> dict[str, Tensor]:
    """`state_dict()` as of the unwrapped model, weights in the dtype of their shards.

    On every rank, or on rank `root` and {} on the others. Buffers are equal when a model is wrapped
    and local to each rank from then on: those that a forward writes (BatchNorm's) differ, and each
    rank returns its own.
    """
    mine, whole = root in (None, zero.group.rank), {}
    for unit in zero.units:
        unit.shard_shelf.get()
        full = unit.together(unit.shard)  # (S,)
        unit.shard_shelf.drop()
        for parameter, place in unit.places.items() if mine else ():
            whole[parameter] = full[place].view(parameter.shape).clone()
    state = zero.module.state_dict(keep_vars=True) if mine else {}
    return {name: whole[t] if t in whole else t.clone() for name, t in state.items()}


@torch.no_grad()
def full_gradients(zero: Sharded, root: int | None = None) -> dict[str, Tensor]:
    """name -> the gradient averaged over ranks, for each parameter that has one."""
    mine, whole = root in (None, zero.group.rank), {}
    for unit in zero.trained:
        unit.drop_zeroed()
        if unit.gradient is None:
            continue
        unit.gradient_shelf.get()
        full = unit.together(unit.gradient)  # (S,)
        unit.gradient_shelf.drop()
        for name, parameter in unit.parameters.items() if mine else ():
            whole[name] = full[unit.places[parameter]].view(parameter.shape).clone()
    return whole


@torch.no_grad()
def load_full_state_dict(zero: Sharded, state: dict[str, Tensor], root: int | None = None) -> None:
    """Every rank copies its part of `state`, or of rank `root`'s, which is broadcast.

    Buffers too: with `root` they are equal on all ranks again.
    """
    mine, group = root in (None, zero.group.rank), zero.group
    if mine:
        _check_names(zero, state)
    for unit in zero.units:
        full = torch.zeros_like(unit.shard).repeat(group.size)  # (S,)
        for name, parameter in unit.parameters.items() if mine else ():
            full[unit.places[parameter]] = state[name].to(full).flatten()
        if root is not None:
            group.broadcast(full, root)
        zero.overwrite(unit, full[unit.mine])
    zero.settle()
    for name, tensor in uncut(zero).items():
        if mine:
            tensor.copy_(state[name])
        if root is not None:
            group.broadcast(tensor.data, root)


@torch.no_grad()
def full_optimizer_state(
    zero: Sharded, optimizer: torch.optim.Optimizer, root: int | None = None
) -> dict[str, dict[str, Tensor]]:
    """name -> the optimizer's state of the whole parameter, for each that it has stepped.

    Collective; on every rank, or on rank `root` and {} on the others.
    """
    _arrive(optimizer)
    mine, whole = root in (None, zero.group.rank), {}
    for unit in zero.trained:
        states = {name: optimizer.state.get(p.weight, {}) for name, p in unit.pieces.items()}
        for name, state in states.items() if mine else ():
            whole[name] = {kind: value.clone() for kind, value in state.items() if not value.dim()}
        for kind in sorted({k for state in states.values() for k, v in state.items() if v.dim()}):
            part = torch.zeros_like(unit.shard)  # (S/N,)
            for name, piece in unit.pieces.items():
                part[piece.place] = states[name][kind].flatten()
            full = unit.together(part)  # (S,)
            for name, parameter in unit.parameters.items() if mine else ():
                whole[name][kind] = full[unit.places[parameter]].view(parameter.shape).clone()
    return {name: state for name, state in whole.items() if state}


@torch.no_grad()
def load_full_optimizer_state(
    zero: Sharded, optimizer: torch.optim.Optimizer, states: dict[str, dict[str, Tensor]]
) -> None:
    """Every rank takes its pieces' part of `states`, which all of them have."""
    for unit in zero.trained:
        for name, piece in unit.pieces.items():
            own = piece.weight
            for kind, value in states.get(name, {}).items():
                if value.dim():
                    value = value.flatten()[piece.start :][: own.numel()].view_as(own)
                optimizer.state[own][kind] = value.clone()


def _check_names(zero: Sharded, state: dict[str, Tensor]) -> None:
    known = zero.module.state_dict(keep_vars=True)
    needed = [*uncut(zero), *(name for unit in zero.units for name in unit.parameters)]
    wrong = {
        "are missing": [name for name in needed if name not in state],
        "are not the model's": [name for name in state if name not in known],
        "have another shape": [
            name for name in needed if name in state and state[name].shape != known[name].shape
        ],
    }
    for what, names in wrong.items():
        if names:
            raise InputError(
                f"{', '.join(names[:4])} ({len(names)} in all) {what}: give "
                "the state_dict() of the same model"
            )


def uncut(zero: Sharded) -> dict[str, Tensor]:
    """The unsharded entries of a state dict: buffers, and in stages 1 and 2 parameters frozen
    before wrapping."""
    known = zero.module.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in known.items() if tensor not in zero.piece_of}


# ---- checkpoints, each rank its own pieces ----


def zero_layout(zero: Sharded) -> Layout:
    """The layout of a state whose model is `zero` and whose optimizer updates its pieces.

    Rank 0 writes buffers, and what stages 1 and 2 leave unsharded. Frozen pieces are weights too.
    """

    def layout(state: TrainState, ranks: CheckpointRanks) -> Placed:
        _arrive(state.optimizer)
        places = {
            id(piece.weight): _place(name, tuple(unit.parameters[name].shape), piece)
            for unit in zero.units
            for name, piece in unit.pieces.items()
        }
        weights = [
            (places[id(piece.weight)], piece.weight.data)
            for unit in zero.units
            for piece in unit.pieces.values()
        ]
        for name, tensor in uncut(zero).items():  # the optimizer may list frozen ones
            places[id(tensor)] = whole_place(name, tensor.shape, ranks.rank == 0)
            weights.append((places[id(tensor)], tensor.data))
        moved = (p for group in state.optimizer.param_groups for p in group["params"])
        return Placed(weights, [places[id(p)] for p in moved], True, lambda: _settle(zero))

    return layout


def _place(name: str, whole: tuple[int, ...], piece: Piece) -> Place:
    return range_place(name, whole, piece.start, tuple(piece.weight.shape))


def _arrive(optimizer: torch.optim.Optimizer) -> None:
    """Brings our optimizer's stored state into memory; torch's optimizers have no store."""
    if isinstance(optimizer, ZeroOptimizer):
        optimizer.arrive()


def _settle(zero: Sharded) -> None:
    """Updates the gathered parameters after their pieces have changed."""
    for unit in zero.units:
        unit.free()
        unit.depart()
        zero.updated(unit)
    zero.settle()
