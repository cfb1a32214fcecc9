"""The state of a model on a mesh: cut from one process's state, and reassembled into it.

    one process  ──apart──▶  parts on dp=2, tp=2, pp=2  ──together──▶  one process  ──apart──▶  tp=4

A checkpoint of the whole, under one process's names and in its order, can be resumed on every mesh
and on one process; a model trained on a mesh can be read and sampled from as usual. Each number is
sent by one of the ranks that hold it, and the others add zeros: it arrives bit for bit.

Cost: 12 bytes a parameter on rank 0, and three all-reduces of the whole model a checkpoint, one
tensor at a time. That works until one rank cannot hold the model; beyond that, with `mesh_layout`
every rank writes its own part, and reads others' parts as needed. Labs: e02f_four_dimensions, e12.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from minitrain.model.transformer import Transformer, empty
from minitrain.optimizers.groups import same_rule
from minitrain.parallel.hybrid.model import AxisGroups, MeshModel
from minitrain.parallel.hybrid.sharded_state import ShardedState
from minitrain.parallel.layout import Slice, layout_of
from minitrain.parallel.pipeline.stages import holders, ranks_with
from minitrain.reliability.checkpoint.contents import CheckpointRanks, Layout
from minitrain.reliability.checkpoint.placement import Box, Place, Placed, whole_place
from minitrain.training.state import TrainState


@dataclass(frozen=True)
class Held:
    """A parameter or buffer here: its `part` of the whole; `is_sent`: this rank sends it."""

    tensor: Tensor
    part: Slice | None
    is_sent: bool

    def of(self, whole: Tensor) -> Tensor:
        """This rank's part of a whole tensor."""
        return whole if self.part is None or whole.dim() == 0 else self.part.of(whole)

    def in_whole(self, tensor: Tensor) -> Tensor:
        """`tensor`, shaped like this part, placed in a whole of zeros."""
        return tensor.clone() if self.part is None else self.part.in_whole(tensor)

    def place(self, name: str) -> Place:
        """The rows held here, for a checkpoint, and those among them that this rank writes."""
        local = tuple(self.tensor.shape)
        if self.part is None:
            return whole_place(name, local, self.is_sent)
        part = self.part
        whole = (*local[: part.dim], part.whole, *local[part.dim + 1 :])
        held = self._rows(range(part.held))
        counted = range(part.held) if part.owned is None else part.owned
        owned = self._rows(counted) if self.is_sent else ()
        return Place(name, whole, local, held, owned)

    def _rows(self, rows: range) -> tuple[Box, ...]:
        """A box of the whole: these rows of this rank's tensor."""
        if not rows:
            return ()
        shape, offsets = list(self.tensor.shape), [0] * self.tensor.dim()
        shape[self.part.dim], offsets[self.part.dim] = len(rows), self.part.start + rows.start
        narrow = partial(torch.narrow, dim=self.part.dim, start=rows.start, length=len(rows))
        return (Box(tuple(offsets), tuple(shape), narrow),)


def held_by(model: MeshModel) -> dict[str, Held]:
    """This rank's tensors under one-process names: a tied head is "embed.weight"."""
    here, found = model.axes.here["pp"], {}
    for stage in model.stages:
        first = {id(p): min(ranks) for p, ranks in holders(model.schedule, stage)}
        for name, tensor in stage.state_dict(keep_vars=True).items():
            lowest = first.get(id(tensor), min(ranks_with(model.schedule, stage.index)))
            name = "embed.weight" if tensor is stage.tied else name
            is_sent = here == lowest and is_first_copy(tensor, model.axes)
            found[name] = Held(tensor, layout_of(tensor).slice, is_sent)
    return found


def is_first_copy(tensor: Tensor, axes: AxisGroups) -> bool:
    """True if no earlier rank of the same stage holds the same elements."""
    split = layout_of(tensor).split
    return all(place == 0 for axis, place in axes.here.items() if axis not in (*split, "pp"))


def mesh_layout(model: MeshModel) -> Layout:
    """The layout of a state whose model is `model.modules` and whose optimizer comes from
    `take_apart`: every rank writes its own part, and another mesh, or one process, can read it."""

    def layout(state: TrainState, ranks: CheckpointRanks) -> Placed:
        held = held_by(model)
        places = {name: here.place(name) for name, here in held.items()}
        names = {id(here.tensor): name for name, here in held.items()}
        moved = [p for group in state.optimizer.param_groups for p in group["params"]]
        weights = [(places[name], here.tensor.data) for name, here in held.items()]
        return Placed(weights, [places[names[id(p)]] for p in moved], is_shared=True)

    return layout


@torch.no_grad()
def take_apart(
    model: MeshModel, names: dict[nn.Parameter, str], whole: torch.optim.Optimizer
) -> torch.optim.Optimizer:
    """The optimizer of this rank's parameters, with the whole model's rule, groups and state.

    The rule is element-wise: AdamW, SGD, Lion.

    `names` are the whole model's, from before it was cut: a part no longer shows that it was an
    embedding, which has no weight decay.
    """
    held = held_by(model)
    groups = []
    for group in whole.param_groups:
        mine = [held[names[p]].tensor for p in group["params"] if names[p] in held]
        groups.append({**group, "params": mine})
    optimizer = type(whole)([group for group in groups if group["params"]])
    for parameter, state in whole.state.items():
        here = held.get(names[parameter])
        if here is not None:
            mine = {name: here.of(value).clone() for name, value in state.items()}
            optimizer.state[here.tensor] = mine
    return optimizer


@torch.no_grad()
def put_together(
    model: MeshModel, optimizer: torch.optim.Optimizer
) -> tuple[Transformer, torch.optim.Optimizer] | None:
    """The whole model and its optimizer, on the CPU of rank 0; None on the others. Collective."""
    if isinstance(optimizer, ShardedState):
        optimizer = optimizer.whole()
    held = held_by(model)
    whole = gathered(model, held)
    states = whole_states(whole, held, optimizer, model.axes)
    if model.axes.world.rank > 0:
        return None
    again = same_rule(optimizer, whole)
    again.state.update(states)
    return whole, again


@torch.no_grad()
def whole_model(model: MeshModel) -> Transformer | None:
    """The one-process model on rank 0; None on the others. Collective."""
    whole = gathered(model, held_by(model))
    return None if model.axes.world.rank > 0 else whole


def gathered(model: MeshModel, held: dict[str, Held]) -> Transformer:
    """The whole model from all ranks' parts, on rank 0's CPU; other ranks get no values."""
    where = "cpu" if model.axes.world.rank == 0 else "meta"
    whole = empty(model.config, where, model.stages[0].dtype)
    for name, tensor in (*whole.named_parameters(), *whole.named_buffers()):
        mine = held[name].tensor if name in held else None
        tensor.copy_(sent_together(tensor, held.get(name), mine, model.axes))
    return whole


def whole_states(
    whole: Transformer, held: dict[str, Held], optimizer: torch.optim.Optimizer, axes: AxisGroups
) -> dict[nn.Parameter, dict[str, Tensor]]:
    """The optimizer's state of every parameter of `whole`; none before the first step.

    Counts are the same for all parameters; everything else has the parameter's shape.
    """
    mine = {name: optimizer.state.get(here.tensor, {}) for name, here in held.items()}
    known = next((state for state in mine.values() if state), {})
    states = {}
    for name, parameter in whole.named_parameters() if known else ():
        state = {kind: value.cpu().clone() for kind, value in known.items() if not value.dim()}
        for kind in (kind for kind, value in known.items() if value.dim()):
            own = mine.get(name, {}).get(kind)
            together = sent_together(parameter, held.get(name), own, axes)
            state[kind] = together.to(parameter.device)
        states[parameter] = state
    return states


def sent_together(
    whole: Tensor, here: Held | None, mine: Tensor | None, axes: AxisGroups
) -> Tensor:
    """One tensor of the shape of `whole`, summed from the ranks' parts; `mine` is this rank's."""
    if here is not None and here.is_sent:
        part = here.in_whole(mine.detach())
    else:
        part = torch.zeros(whole.shape, dtype=whole.dtype, device=axes.world.device)
    return axes.world.all_reduce(part)
