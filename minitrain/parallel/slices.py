"""Which slice of a one-process parameter a rank holds: how it is cut, and how it comes together.

A sliced model starts as the slices of the one-process model, so that N ranks and one process train
the same. A slice is along one dim; past the end of the whole it is padding, zeros that nothing
reads (a vocabulary that N does not divide). Lab: e02b_tensor_parallel.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.parallel.group import Group
from minitrain.parallel.layout import inherit_layout, lay_out


@dataclass(frozen=True)
class Slice:
    """`length` rows from `start` along `dim`; the whole parameter has `whole` of them."""

    dim: int
    start: int
    length: int
    whole: int

    def of(self, tensor: Tensor) -> Tensor:
        """This slice of a whole tensor, a new one, zeros past its end."""
        stop = min(self.start + self.length, self.whole)
        held = max(0, stop - self.start)
        shape = list(tensor.shape)
        shape[self.dim] = self.length
        out = tensor.new_zeros(shape)
        if held:
            out.narrow(self.dim, 0, held).copy_(tensor.narrow(self.dim, self.start, held))
        return out


def even_slice(name: str, length: int, group: Group, dim: int) -> Slice:
    """The rank's 1/N of `length`; `name` is for the message where N does not divide it."""
    if length % group.size:
        lower = length - length % group.size
        raise InputError(
            f"{name} {length} cannot be split over {group.size} ranks: "
            f"use {f'{lower} or ' if lower else ''}{lower + group.size}, or another number of ranks"
        )
    return padded_slice(length, group, dim)


def padded_slice(length: int, group: Group, dim: int) -> Slice:
    """The same, ⌈length/N⌉ on every rank: the last ones may hold padding."""
    share = -(-length // group.size)
    return Slice(dim, group.rank * share, share, length)


def cut(
    parameter: nn.Parameter | None, part: Slice, owned: range | None = None
) -> nn.Parameter | None:
    """The slice as a parameter of its own, which knows what it is a slice of."""
    if parameter is None:
        return None
    mine = nn.Parameter(part.of(parameter.detach()), requires_grad=parameter.requires_grad)
    mine.slice = part
    inherit_layout(mine, parameter)
    lay_out(mine, split="tp", owned=owned)
    return mine


def placed(tensor: Tensor, part: Slice, owned: range | None = None) -> Tensor:
    """The rows of `tensor` that this rank owns, where they belong in a whole of zeros."""
    shape = list(tensor.shape)
    shape[part.dim] = part.whole
    out = tensor.new_zeros(shape)
    rows = range(max(0, min(part.length, part.whole - part.start))) if owned is None else owned
    if rows:
        place = out.narrow(part.dim, part.start + rows.start, len(rows))
        place.copy_(tensor.narrow(part.dim, rows.start, len(rows)))
    return out
