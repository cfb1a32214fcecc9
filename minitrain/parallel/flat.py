"""A unit of ZeRO: parameters side by side in one flat tensor, of which each of N ranks owns 1/N.

    full      | embed ........ | norm | q ............ | k ........ |pad|     (S,) computes with it
    shard     |    rank 0    |    rank 1    |    rank 2    |    rank 3    |   (S/N,) is updated
    pieces         embed      embed|norm|q         q           q | k

A parameter is a view of `full`, a *piece* is what one rank's shard has of one parameter: the
optimizer gets the pieces, and so keeps 1/N of its state, each with its own weight decay. Where
`full` leaves memory, its storage shrinks to 0 bytes and the parameters, and what autograd saved of
them, stay the same objects: when the storage is filled again, all of them are there again.
Bytes a parameter: `full` 2 or 4, its gradients as much; the shard 4/N, AdamW's state 8/N. Lab: e03.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.parallel.exchange import start_all_gather, start_reduce_scatter
from minitrain.parallel.group import Group
from minitrain.training.offload import Shelf


@dataclass(frozen=True)
class Piece:
    """Elements start … start + n of a parameter, as a view of this rank's shard."""

    weight: nn.Parameter  # (n,)
    start: int  # within the parameter
    place: slice  # within the shard


class Unit:
    """`parameters` (name -> parameter) are of one dtype, all trained or all frozen.

    resident: `full` stays in memory (stages 1 and 2); keeps_gradients: all of them do (stage 1).
    """

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        group: Group,
        compute_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
        resident: bool = False,
        keeps_gradients: bool = False,
    ) -> None:
        first = next(iter(parameters.values()))
        self.parameters, self.group, self.trains = parameters, group, first.requires_grad
        self.resident, self.keeps_gradients = resident, keeps_gradients
        self.compute_dtype = compute_dtype or first.dtype
        self.reduce_dtype = reduce_dtype or self.compute_dtype
        self.elements = sum(p.numel() for p in parameters.values())
        self.length = -(-self.elements // group.size)  # S/N, rounded up: the last shard is padded
        self.mine = slice(group.rank * self.length, (group.rank + 1) * self.length)
        self.shard_shelf, self.gradient_shelf = Shelf(), Shelf()  # in memory, until offloaded
        self._flatten(first)
        self.gradients: Tensor | None = None  # (S,) of this rank's backward
        self.gradient: Tensor | None = None  # (S/N,) averaged over ranks, summed over microbatches
        self._written: set[nn.Parameter] = set()  # whose place in `gradients` holds something
        self._reduced: Callable[[], Tensor] | None = None
        self._arrived: Callable[[], None] | None = None  # of the gather under way, or done
        self.reset()
        self.gather() if resident else self.free()

    def _flatten(self, first: nn.Parameter) -> None:
        master = torch.promote_types(first.dtype, torch.float32) if self.trains else first.dtype
        like = {"device": first.device}
        self.full = torch.zeros(
            self.length * self.group.size, dtype=self.compute_dtype, device=first.device
        )
        self.shares = self.resident and master == self.compute_dtype
        self.shard = (
            self.full[self.mine] if self.shares else torch.zeros(self.length, dtype=master, **like)
        )
        self.places, self.pieces, start = {}, {}, 0
        for name, parameter in self.parameters.items():
            self.places[parameter] = slice(start, start + parameter.numel())
            self._cut(name, parameter, start)
            parameter.data = self.full[self.places[parameter]].view(parameter.shape)
            start += parameter.numel()

    def _cut(self, name: str, parameter: nn.Parameter, start: int) -> None:
        """The piece that this rank owns of the parameter, if any."""
        low = max(start, self.mine.start)
        high = min(start + parameter.numel(), self.mine.stop)
        if low < high:
            place = slice(low - self.mine.start, high - self.mine.start)
            self.shard[place].copy_(parameter.data.reshape(-1)[low - start : high - start])
            weight = nn.Parameter(self.shard[place], requires_grad=self.trains)
            self.pieces[name] = Piece(weight, low - start, place)

    # ---- parameters: together for a while, then apart ----

    def start_gather(self) -> None:
        """The shards are on their way into `full`; nothing happens where they are, or are there."""
        if self._arrived is not None:
            return
        self.full.untyped_storage().resize_(self.full.numel() * self.full.itemsize)
        if not self.shares:
            self.shard_shelf.get()
            self.full[self.mine].copy_(self.shard)
            self.shard_shelf.drop()
        self._arrived = start_all_gather(self.group, self.full)

    def gather(self) -> None:
        """The parameters can be used."""
        self.start_gather()
        self._arrived()

    def free(self) -> None:
        """`full` is out of date, and gives its memory back unless it is resident."""
        if self._arrived is not None:
            self._arrived()  # also if nobody used it: the others have sent it
        self._arrived = None
        if not self.resident:
            self.full.untyped_storage().resize_(0)

    # ---- gradients: of this rank in full, then of all ranks in part ----

    def reset(self) -> None:
        """Before a backward: every gradient is still to come."""
        self.missing = set(self.parameters.values()) if self.trains else set()

    @torch.no_grad()
    def take(self, parameter: nn.Parameter) -> None:
        """Moves `parameter.grad` into its place in `gradients`, or adds it there."""
        place = self._room()[self.places[parameter]].view(parameter.shape)
        if parameter in self._written:
            place.add_(parameter.grad)
        else:
            place.copy_(parameter.grad)
        self._written.add(parameter)
        self.missing.discard(parameter)
        parameter.grad = None

    def _room(self) -> Tensor:
        if self.gradients is None:
            self.gradients = torch.empty_like(
                self.full, dtype=self.reduce_dtype, device=self.shard.device
            )
            self.gradients[self.elements :] = 0
        elif not self._written and self.gradient is not None:
            self.gradient = self.gradient.clone()  # was a part of what is now written again
        return self.gradients

    def start_reduce(self) -> None:
        """What no microbatch has used counts as zero; then the parts leave for their owners."""
        gradients = self._room()
        for parameter, place in self.places.items():
            if parameter not in self._written:
                gradients[place] = 0
        exact = torch.promote_types(self.reduce_dtype, torch.float32)
        self._reduced = start_reduce_scatter(self.group, gradients, exact)

    def finish_reduce(self) -> None:
        """`gradient` is the ranks' average, added to what it was; `gradients` are forgotten."""
        if self._reduced is None:
            return
        average = self._reduced().div_(self.group.size)  # (S/N,)
        if self.gradient is not None:
            self.gradient_shelf.get()
            average.add_(self.gradient)
        if self.keeps_gradients:
            self.gradient = self.gradients[self.mine].copy_(average)
        else:
            self.gradient, self.gradients = average.to(self.reduce_dtype), None
        self._reduced = None
        self._written.clear()
        self.gradient_shelf.put([self.gradient])
        if self.gradient.dtype == self.shard.dtype and not self.gradient_shelf.away:
            self.show_gradient()

    def show_gradient(self) -> None:
        """Every piece's `.grad` is its part of `gradient`, in the dtype of the shard."""
        if self.gradient is not None:
            exact = self.gradient.to(self.shard.dtype)
            for piece in self.pieces.values():
                piece.weight.grad = exact[piece.place]

    def hide_gradient(self) -> None:
        for piece in self.pieces.values():
            piece.weight.grad = None

    def forget_gradient(self) -> None:
        self.hide_gradient()
        self.gradient_shelf.forget()
        self.gradient = None
        self._written.clear()
        if not self.keeps_gradients:
            self.gradients = None

    def squared_gradient(self) -> Tensor:
        """The sum of this shard's squares; the padding adds 0."""
        if self.gradient is None:
            return torch.zeros((), dtype=self.shard.dtype, device=self.shard.device)
        self.gradient_shelf.get()
        norm = torch.linalg.vector_norm(self.gradient, dtype=self.shard.dtype)
        self.gradient_shelf.drop()
        return norm.square()

    def scale_gradient(self, factor: Tensor) -> None:
        if self.gradient is not None:
            self.gradient_shelf.get()
            self.gradient.mul_(factor)
            self.gradient_shelf.put([self.gradient])

    # ---- offload: shard and gradient wait in a store (training/offload.py) ----

    def offload_gradient(self, shelf: Shelf) -> None:
        if self.keeps_gradients:
            raise InputError("stage 1 keeps all gradients in memory: offload them in stage 2 or 3")
        self.gradient_shelf = shelf

    def offload_shard(self, shelf: Shelf) -> None:
        if self.resident:
            raise InputError("stages 1 and 2 keep all parameters: offload them in stage 3")
        self.shard_shelf = shelf
        shelf.put([self.shard])

    def fetch(self) -> None:
        """Shard and gradient are on their way back for the optimizer."""
        self.shard_shelf.fetch()
        self.gradient_shelf.fetch()

    def arrive(self) -> None:
        self.shard_shelf.get()
        self.gradient_shelf.get()

    def depart(self) -> None:
        """The optimizer has moved the shard, and needs the gradient no more."""
        self.shard_shelf.put([self.shard])
        self.gradient_shelf.drop()
