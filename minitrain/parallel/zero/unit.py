"""A unit of ZeRO: parameters in one flat tensor, of which each of N ranks owns 1/N.

    full      | embed ........ | norm | q ............ | k ........ |pad|     (S,) for compute
    shard     |    rank 0    |    rank 1    |    rank 2    |    rank 3    |   (S/N,) for updates
    pieces         embed      embed|norm|q         q           q | k

A parameter is a view of `full`; a *piece* is the part of one parameter in one rank's shard. The
optimizer gets the pieces, each with its own weight decay, and so keeps 1/N of its state. To free
`full`, its storage shrinks to 0 bytes; the parameters, and what autograd saved of them, stay the
same objects: when the storage is filled again, all have their values again.
Bytes a parameter: `full` 2 or 4, its gradients as much; the shard 4/N, AdamW's state 8/N. Lab: e03.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.memory.optimizer_offload import Shelf
from minitrain.parallel.collectives.overlapped import start_all_gather, start_reduce_scatter_mean
from minitrain.parallel.zero.guards import FreedWeight, ShardedGradient, WholeWeight, gradient_of
from minitrain.ranks.group import Group


@dataclass(frozen=True)
class Piece:
    """Elements start … start + n of a parameter, as a view of this rank's shard; n may be 0.

    It has as many dimensions as the parameter, by which users decide on weight decay.
    """

    weight: nn.Parameter  # (1, …, 1, n)
    start: int  # within the parameter
    place: slice  # within the shard


class Unit:
    """`parameters` (name -> parameter) are of one dtype, all trained or all frozen.

    In stages 1 and 2 `full` stays in memory; in stage 1 so do the full gradients.
    """

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        group: Group,
        stage: int,
        compute_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
    ) -> None:
        first = next(iter(parameters.values()))
        self.parameters, self.group, self.stage = parameters, group, stage
        self.trains = first.requires_grad
        self.compute_dtype = compute_dtype or first.dtype
        self.reduce_dtype = reduce_dtype or self.compute_dtype
        self.places: dict[nn.Parameter, slice] = {}  # within `full`
        self.pieces: dict[str, Piece] = {}
        self.gradients: Tensor | None = None  # (S,) of this rank's backwards
        self.gradient: Tensor | None = None  # (S/N,) averaged over ranks, summed over microbatches
        self.written: set[nn.Parameter] = set()  # those with a value in `gradients`
        self.shard_shelf, self.gradient_shelf = Shelf(), Shelf()  # in memory, until offloaded
        self.shown = False  # is set as the pieces' `.grad`
        self.takes_turns = False  # `gradient` keeps its dtype until the optimizer reaches the unit
        self._reduced: Callable[[], Tensor] | None = None
        self._arrived: Callable[[], object] | None = lambda: None  # gathered, or in flight
        self._flatten()
        self.reset()
        if stage == 3:
            self.free()

    def _flatten(self) -> None:
        start = 0
        for parameter in self.parameters.values():
            self.places[parameter] = slice(start, start + parameter.numel())
            start += parameter.numel()
        length = -(-start // self.group.size)  # S/N, rounded up: the last shard is padded
        self.padding = slice(start, length * self.group.size)
        self.mine = slice(self.group.rank * length, (self.group.rank + 1) * length)
        dtype = parameter.dtype
        master = torch.promote_types(dtype, torch.float32) if self.trains else dtype
        whole = torch.zeros(self.padding.stop, dtype=master, device=parameter.device)
        for parameter, place in self.places.items():
            whole[place] = parameter.data.flatten()
        self.full = whole.to(self.compute_dtype)
        self.shares = self.stage < 3 and self.full is whole
        self.shard = whole[self.mine] if self.shares else whole[self.mine].clone()
        for name, parameter in self.parameters.items():
            place = self.places[parameter]
            parameter.data = self.full[place].view(parameter.shape)
            parameter.__class__ = WholeWeight
            self._cut(name, place)

    def _cut(self, name: str, place: slice) -> None:
        """Makes this rank's piece of the parameter: exactly one on every rank, so that optimizers
        have the same groups everywhere."""
        mine = self.mine
        low, high = (min(max(x, mine.start), mine.stop) for x in (place.start, place.stop))
        inside = slice(low - mine.start, high - mine.start)
        ones = (1,) * (self.parameters[name].ndim - 1)
        weight = nn.Parameter(self.shard[inside].view(*ones, -1), requires_grad=self.trains)
        self.pieces[name] = Piece(weight, max(0, low - place.start), inside)

    # ---- parameters: gathered, used, freed ----

    def start_gather(self) -> None:
        """Starts gathering the shards into `full`; does nothing if that is started or done."""
        if self._arrived is not None:
            return
        self.full.untyped_storage().resize_(self.full.nbytes)
        if not self.shares:
            self.shard_shelf.get()
            self.full[self.mine].copy_(self.shard)
            self.shard_shelf.drop()
        self._arrived = start_all_gather(self.group, self.full)

    def gather(self) -> None:
        """Waits until the parameters can be used."""
        self.start_gather()
        self._arrived()
        for parameter in self.places:
            parameter.__class__ = WholeWeight

    def free(self) -> None:
        """Marks `full` as out of date; stage 3 frees its memory."""
        if self._arrived is not None:
            self._arrived()  # even if unused: the others have sent their parts
        self._arrived = None
        if self.stage == 3:
            self.full.untyped_storage().resize_(0)
            for parameter in self.places:
                parameter.__class__ = FreedWeight

    def together(self, part: Tensor) -> Tensor:
        """(S/N,) from each rank -> (S,), a new tensor on every rank."""
        return self.group.all_gather(part.new_empty(self.padding.stop), part.contiguous())

    @torch.no_grad()
    def keep_changes(self) -> None:
        """Writes changes of the gathered parameters back to the shard; unchanged elements keep
        their exact values."""
        self.check_place()
        self.shard_shelf.get()
        new, old = self.full[self.mine], self.shard.to(self.full.dtype)
        self.shard.copy_(torch.where(new == old, self.shard, new.to(self.shard.dtype)))
        self.shard_shelf.put([self.shard])

    def check_place(self) -> None:
        """Raises InputError if `model.to(…)` has moved the parameters out of `full`."""
        if next(iter(self.places)).data_ptr() != self.full.data_ptr():
            raise InputError(
                "the model was moved or cast after it was wrapped, and ZeRO no longer knows where "
                "its weights are: call .to() first, and wrap it then"
            )

    # ---- gradients: this rank's in full, then all ranks' in part ----

    def reset(self) -> None:
        """Prepares for a backward: every gradient is still missing."""
        self.missing = set(self.places) if self.trains else set()

    @torch.no_grad()
    def _move(self, parameter: nn.Parameter) -> None:
        """Moves `parameter.grad` to its place in `gradients`, or adds it there."""
        place = self._room()[self.places[parameter]].view(parameter.shape)
        if parameter in self.written:
            place.add_(gradient_of(parameter))
        else:
            place.copy_(gradient_of(parameter))
        self.written.add(parameter)
        parameter.grad = None

    def _room(self) -> Tensor:
        if self.gradients is None:
            self.gradients = self.shard.new_empty(self.padding.stop, dtype=self.reduce_dtype)
            self.gradients[self.padding] = 0
        elif self.gradient is not None and not self.written:  # stage 1: it is a part of them
            self.gradient = self.gradient.clone()
        return self.gradients

    def start_reduce(self) -> None:
        """Starts the reduction to the owners; parameters that no microbatch used count as zero
        gradients.

        The gradients move into `gradients` only now, once the activations of the unit are freed:
        moving each on arrival raised the peak by 10% in stages 1 and 2 (bench zero, 1M).
        """
        for parameter, place in self.places.items():
            if gradient_of(parameter) is not None:
                self._move(parameter)
            elif parameter not in self.written:
                self._room()[place] = 0
        self._reduced = start_reduce_scatter_mean(self.group, self._room())

    def finish_reduce(self) -> None:
        """Adds the ranks' average to `gradient`; stages 2 and 3 keep nothing else."""
        if self._reduced is None:
            return
        average = self._reduced()  # (S/N,) of `gradients`
        if not self.takes_turns:
            average = average.to(self.shard.dtype)
        self.drop_zeroed()
        if self.gradient is not None:
            self.gradient_shelf.get()
            average.add_(self.gradient)
        self.gradient = average
        if self.stage > 1:
            self.gradient, self.gradients = average.clone(), None
        self._reduced = None
        self.written.clear()
        self.gradient_shelf.put([self.gradient])
        if self.gradient.dtype == self.shard.dtype and not self.gradient_shelf.away:
            self.show_gradient()

    def show_gradient(self) -> None:
        """Sets every piece's `.grad` to its part of `gradient`, in the dtype of the shard."""
        if self.gradient is None:
            return
        exact = self.gradient.to(self.shard.dtype)
        for piece in self.pieces.values():
            part = exact[piece.place].view(piece.weight.shape)
            piece.weight.grad = part.as_subclass(ShardedGradient)
        self.shown = True

    def hide_gradient(self) -> None:
        for piece in self.pieces.values():
            piece.weight.grad = None
        self.shown = False

    def drop_zeroed(self) -> None:
        """Counts a `.grad` that an optimizer's `zero_grad` has set to None as zero."""
        gone = [piece for piece in self.pieces.values() if piece.weight.grad is None]
        if self.shown and len(gone) == len(self.pieces):
            self.gradient, self.shown = None, False
        elif self.shown:
            for piece in gone:
                self.gradient[piece.place] = 0

    def forget_gradient(self) -> None:
        self.hide_gradient()
        self.gradient_shelf.forget()
        self.gradient = None
        if self.stage > 1:
            self.gradients = None
        self.written.clear()
        for parameter in self.places:
            parameter.grad = None

    def scale_gradient(self, factor: Tensor) -> None:
        if self.gradient is not None:
            self.gradient_shelf.get()
            self.gradient.mul_(factor)
            self.gradient_shelf.put([self.gradient])

    # ---- around the optimizer: offloaded, shard and gradient are here for the unit's turn ----

    def fetch(self) -> None:
        self.shard_shelf.fetch()
        self.gradient_shelf.fetch()

    def arrive(self) -> None:
        self.shard_shelf.get()
        self.gradient_shelf.get()

    def depart(self) -> None:
        """Offloads the shard after the optimizer has updated it, and drops the gradient."""
        self.shard_shelf.put([self.shard])
        self.gradient_shelf.drop()
