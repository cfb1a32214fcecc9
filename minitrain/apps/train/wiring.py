"""The layout of a training run on its ranks: a whole model on each (DDP), shards of it (ZeRO), or
its parts on a mesh.

All start from a one-process model and optimizer, resumed or fresh, and restore them for a
checkpoint, which is the same file in every layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from minitrain.apps.train.options import TrainOptions
from minitrain.data.loader import Batch, Loader
from minitrain.model.transformer import empty
from minitrain.optimizers.groups import same_rule
from minitrain.parallel.context.split import split_sequence
from minitrain.parallel.ddp import DDP
from minitrain.parallel.hybrid.model import MeshModel, MeshOptions, full_mesh
from minitrain.parallel.hybrid.sharded_state import ShardedState
from minitrain.parallel.hybrid.state import put_together, take_apart
from minitrain.parallel.zero.optimizer import ZeroOptimizer
from minitrain.parallel.zero.sharded import Zero
from minitrain.parallel.zero.stage_3 import Zero3
from minitrain.parallel.zero.state import (
    full_optimizer_state,
    full_state_dict,
    load_full_optimizer_state,
)
from minitrain.ranks.group import Group
from minitrain.reliability.spikes import OwnNorms
from minitrain.training.loop import ALONE, Peers, StepResult, TrainConfig, evaluate
from minitrain.training.state import TrainState


@dataclass(frozen=True)
class Seat:
    """A rank's position among the readers of a batch: `rank` of `size`."""

    rank: int = 0
    size: int = 1


def find_seat(options: TrainOptions, group: Group | None) -> Seat:
    """Ranks that differ only in pp, cp or tp read the same rows."""
    if group is None:
        return Seat()
    if not options.on_mesh:
        return Seat(group.rank, group.size)
    mesh = full_mesh(**options.axes)
    here = mesh.coordinates(group.rank)
    return Seat(here["dp"] * mesh["ep"] + here["ep"], mesh["dp"] * mesh["ep"])


class DataParallel:
    """The whole model on every rank; uses the training loop's own step."""

    step = None

    def __init__(
        self, state: TrainState, group: Group | None, plan: TrainConfig, watch_norms: bool = False
    ) -> None:
        self.state, self.group, self.autocast = state, group, plan.autocast
        self.model, self.peers = state.model, ALONE
        self.own_norms: OwnNorms | None = None
        if group is not None:
            self.own_norms = OwnNorms(state.model, group) if watch_norms else None
            self.model = DDP(state.model, group)
            self.peers = Peers(group.size, group.all_reduce, self.model.finish, self.model.no_sync)

    def evaluate(self, loader: Loader) -> float:
        """Nats per token; each rank reads its share."""
        return evaluate(self.state.model, loader, self.autocast, self.peers)

    def whole(self) -> TrainState:
        return self.state


class Sharded(DataParallel):
    """ZeRO: each rank keeps its share of the optimizer's state, in stage 2 also of the gradients,
    in stage 3 also of the parameters."""

    def __init__(self, whole: TrainState, group: Group, stage: int, plan: TrainConfig) -> None:
        self.config, self.group, self.autocast = whole.model.config, group, plan.autocast
        names = {parameter: name for name, parameter in whole.model.named_parameters()}
        states = {names[parameter]: state for parameter, state in whole.optimizer.state.items()}
        self.model = self.zero = (
            Zero3(whole.model, group) if stage == 3 else Zero(whole.model, group, stage)
        )
        groups = whole.optimizer.param_groups
        optimizer = ZeroOptimizer(self.zero, groups, type(whole.optimizer))
        load_full_optimizer_state(self.zero, optimizer, states)
        self.state = replace(whole, model=self.zero, optimizer=optimizer)
        self.peers, self.own_norms = self.zero.peers(), None

    def whole(self) -> TrainState:
        """Collective: the model and its optimizer on rank 0, None on the others."""
        weights = full_state_dict(self.zero, root=0)
        states = full_optimizer_state(self.zero, self.state.optimizer, root=0)
        if self.group.rank > 0:
            return replace(self.state, model=None, optimizer=None)
        model = empty(self.config, "cpu", torch.float32)
        model.load_state_dict(weights)
        optimizer = same_rule(self.state.optimizer.inner, model)
        named = dict(model.named_parameters())
        optimizer.state.update({named[name]: state for name, state in states.items()})
        return replace(self.state, model=model, optimizer=optimizer)


class OnMesh:
    """This rank's part of the model, with `MeshModel`'s step instead of the loop's."""

    def __init__(
        self, whole: TrainState, group: Group, options: TrainOptions, plan: TrainConfig
    ) -> None:
        names = {parameter: name for name, parameter in whole.model.named_parameters()}
        how = MeshOptions(
            options.schedule, options.accumulate, options.chunks, options.sequence, plan.autocast
        )
        self.parts = MeshModel(whole.model, full_mesh(**options.axes), group, how)
        optimizer = take_apart(self.parts, names, whole.optimizer)
        if options.zero:
            optimizer = ShardedState(optimizer, self.parts.axes)
        self.model: nn.Module = self.parts.modules
        self.state = replace(whole, model=self.model, optimizer=optimizer)
        self.peers, self.clip = Peers(group.size, group.all_reduce), plan.clip

    def step(self, microbatches: Sequence[Batch]) -> StepResult:
        return self.parts.step(self.state.optimizer, self.own_tokens(microbatches), self.clip)

    def evaluate(self, loader: Loader) -> float:
        """Nats per token, by forwards through the mesh."""
        device = self.parts.stages[0].device
        batches = self.own_tokens([batch.to(device) for batch in loader])
        return self.parts.evaluate(batches).item()

    def own_tokens(self, batches: Sequence[Batch]) -> list[Batch]:
        """This rank's T/cp tokens of each row (B, T)."""
        place, size = self.parts.axes.here["cp"], self.parts.axes.mesh["cp"]
        return [split_sequence(batch, place, size) for batch in batches] if size > 1 else batches

    def whole(self) -> TrainState:
        """Collective: the model and its optimizer on rank 0, None on the others."""
        model, optimizer = put_together(self.parts, self.state.optimizer) or (None, None)
        return replace(self.state, model=model, optimizer=optimizer)


Wiring = DataParallel | OnMesh


def wire(
    state: TrainState, group: Group | None, options: TrainOptions, plan: TrainConfig
) -> Wiring:
    if options.on_mesh:
        return OnMesh(state, group, options, plan)
    if options.zero:
        return Sharded(state, group, options.zero, plan)
    return DataParallel(state, group, plan, options.skip_spikes)
