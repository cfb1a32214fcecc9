"""The layout of a training run on its ranks: a whole model on each (DDP), or its parts on a mesh.

Both start from a one-process model and optimizer, resumed or fresh, and restore them for a
checkpoint, which is the same file either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import nn

from minitrain.apps.train.options import TrainOptions
from minitrain.data.loader import Batch, Loader
from minitrain.parallel.context.split import split_sequence
from minitrain.parallel.ddp import DDP
from minitrain.parallel.hybrid.model import MeshModel, MeshOptions, full_mesh
from minitrain.parallel.hybrid.state import put_together, take_apart
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


def wire(
    state: TrainState, group: Group | None, options: TrainOptions, plan: TrainConfig
) -> DataParallel | OnMesh:
    if options.on_mesh:
        return OnMesh(state, group, options, plan)
    return DataParallel(state, group, plan, options.skip_spikes)
