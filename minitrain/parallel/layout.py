"""How a parameter lies on a mesh: which axes split it, and over which its gradient is a part.

Two questions, for each parameter and each axis of the mesh, decide what is sent and counted:

    split     do the ranks along the axis hold different elements?    the norm adds up over it
    partial   does each rank's backward see a part of the loss only?  the gradient is summed over it
    neither   equal copies with equal gradients: nothing is sent, and the norm counts one of them

                                  split      partial
    norm                          -          dp, ep, cp, and tp where the sequence is split over tp
    q, k, v, o, gate, up, down    tp         dp, ep, cp
    k, v that ranks share         tp         dp, ep, cp; `owned` has the rows that count here
    expert                        ep, tp     dp, cp
    embedding tied to the head    tp         dp, ep, cp, pp

Every rank's loss is its tokens' summed loss over the *global* number of tokens, so that parts add
up and nothing is divided. An axis that a parameter's layout does not name makes no difference to
it. Lab: e02f_four_dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.ranks.group import Group


@dataclass(frozen=True)
class Layout:
    """`split` and `partial` are sets of axes of the mesh; they never share one.

    `owned`: where ranks along a split axis hold some rows twice (key/value heads that N ranks do
    not divide), the rows of dim 0 that the norm counts and a checkpoint takes here; None: all.
    """

    split: frozenset[str] = frozenset()
    partial: frozenset[str] = frozenset()
    owned: range | None = None

    def __post_init__(self) -> None:
        both = self.split & self.partial
        assert not both, f"{sorted(both)}: a parameter that is split there has no parts to sum"


def layout_of(parameter: nn.Parameter) -> Layout:
    """What `lay_out` noted, or a whole copy on each rank."""
    return getattr(parameter, "mesh_layout", Layout())  # `layout` is every tensor's own: strided


def lay_out(
    parameter: nn.Parameter, split: str = "", partial: str = "", owned: range | None = None
) -> None:
    """Notes more axes, given as names with spaces between: `lay_out(w, split="tp")`."""
    before = layout_of(parameter)
    parameter.mesh_layout = Layout(
        before.split | set(split.split()),
        before.partial | set(partial.split()),
        before.owned if owned is None else owned,
    )


def inherit_layout(part: nn.Parameter, whole: nn.Parameter) -> None:
    """What was noted for `whole` holds for `part`, which takes its place on this rank."""
    part.mesh_layout = layout_of(whole)


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
