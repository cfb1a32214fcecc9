"""The layout of a ZeRO run's pieces in the whole model: every rank saves its own, any number of
ranks reads them.

    save_checkpoint(run, TrainState(zero, optimizer, loader), ranks=…, layout=zero_layout(zero))
    load_checkpoint(run, …, layout=zero_layout(zero))     other N, other stage, or one process

Nothing is gathered: 12 P/N bytes a rank with AdamW. A piece is a run of a flattened parameter's
elements, which is a few boxes of the parameter (reliability/checkpoint/placement). Labs: e03, e12.
"""

from __future__ import annotations

import torch

from minitrain.parallel.zero.full_state import uncut
from minitrain.parallel.zero.optimizer import ZeroOptimizer
from minitrain.parallel.zero.sharded import Sharded
from minitrain.parallel.zero.unit import Piece
from minitrain.reliability.checkpoint.contents import CheckpointRanks, Layout
from minitrain.reliability.checkpoint.placement import Place, Placed, range_place, whole_place
from minitrain.training.state import TrainState


def zero_layout(zero: Sharded) -> Layout:
    """The layout of a state whose model is `zero` and whose optimizer updates its pieces.

    Buffers, and what stages 1 and 2 leave uncut, rank 0 writes. Frozen pieces are weights too.
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
        for name, tensor in uncut(zero).items():
            weights.append((whole_place(name, tensor.shape, ranks.rank == 0), tensor.data))
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
    """The pieces are others now, and the gathered parameters must follow."""
    for unit in zero.units:
        unit.free()
        unit.depart()
        zero.updated(unit)
    zero.settle()
