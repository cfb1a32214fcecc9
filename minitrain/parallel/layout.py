"""The layout of a parameter on a mesh: the axes that split it, and those over which its gradient is
a part.

For each parameter and mesh axis, two questions decide the communication and the counting:

    split     do the ranks along the axis hold different elements?    the norm sums over it
    partial   does each rank's backward see only part of the loss?    the gradient is summed over it
    neither   equal copies with equal gradients: nothing is sent, and the norm counts one of them

                                  split      partial
    norm                          -          dp, ep, cp, and tp where the sequence is split over tp
    q, k, v, o, gate, up, down    tp         dp, ep, cp
    k, v that ranks share         tp         dp, ep, cp; the slice's `owned` rows count here
    expert                        ep         dp, cp
    embedding tied to the head    tp         dp, ep, cp, pp

Every rank's loss is its tokens' summed loss over the *global* number of tokens, so that parts add
up and nothing is divided. An axis missing from a parameter's layout does not affect it. A tensor
split internally (over tp and ep) has a `Slice`, which knows its place in the whole; pp splits
between parameters. Lab: e02f_four_dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn

from minitrain.errors import divide
from minitrain.ranks.group import Group


@dataclass(frozen=True)
class Slice:
    """`length` rows from `start` along `dim`; the whole parameter has `whole` of them.

    `owned`: if ranks hold some rows twice (key/value heads that N does not divide), the rows here
    that the norm counts and this rank's checkpoint writes; None: all rows that are not padding.
    """

    dim: int
    start: int
    length: int
    whole: int
    owned: range | None = None

    @property
    def held(self) -> int:
        """The number of rows here that are not padding."""
        return max(0, min(self.length, self.whole - self.start))

    def of(self, whole: Tensor) -> Tensor:
        """A copy of this slice of a whole tensor, with zeros past its end."""
        out = self._zeros(whole, self.length)
        rows = whole.narrow(self.dim, min(self.start, self.whole), self.held)
        out.narrow(self.dim, 0, self.held).copy_(rows)
        return out

    def counted(self, part: Tensor) -> Tensor:
        """The rows of this rank's `part` that no other rank counts, a view."""
        rows = range(self.held) if self.owned is None else self.owned
        return part.narrow(self.dim, rows.start, len(rows))

    def in_whole(self, part: Tensor) -> Tensor:
        """The counted rows of this rank's `part`, placed in a whole of zeros."""
        out, rows = self._zeros(part, self.whole), self.counted(part)
        first = self.start + (0 if self.owned is None else self.owned.start)
        out.narrow(self.dim, min(first, self.whole), rows.shape[self.dim]).copy_(rows)
        return out

    def _zeros(self, like: Tensor, length: int) -> Tensor:
        return like.new_zeros(*like.shape[: self.dim], length, *like.shape[self.dim + 1 :])


def even_slice(what: str, length: int, group: Group, dim: int) -> Slice:
    """The rank's 1/N of `length`; `what` names it in the error if N does not divide it."""
    divide(what, length, group.size)
    return padded_slice(length, group, dim)


def padded_slice(length: int, group: Group, dim: int) -> Slice:
    """The rank's slice of ⌈length/N⌉: the last ranks may hold padding."""
    share = -(-length // group.size)
    return Slice(dim, group.rank * share, share, length)


@dataclass(frozen=True)
class Layout:
    """`split` and `partial` are disjoint sets of mesh axes; `slice`: the rows held here, None: all
    of the parameter's."""

    split: frozenset[str] = frozenset()
    partial: frozenset[str] = frozenset()
    slice: Slice | None = None

    def __post_init__(self) -> None:
        both = self.split & self.partial
        assert not both, f"{sorted(both)}: a parameter that is split there has no parts to sum"


def layout_of(parameter: nn.Parameter) -> Layout:
    """The layout that `lay_out` recorded, or a whole copy on each rank."""
    return getattr(parameter, "mesh_layout", Layout())  # a tensor's own `layout` means strided


def lay_out(parameter: nn.Parameter, split: str = "", partial: str = "") -> None:
    """Records more axes, given as space-separated names: `lay_out(w, split="tp")`."""
    before = layout_of(parameter)
    parameter.mesh_layout = replace(
        before,
        split=before.split | set(split.split()),
        partial=before.partial | set(partial.split()),
    )


def take_slice(parameter: nn.Parameter | None, part: Slice, axis: str) -> nn.Parameter | None:
    """A rank's slice along a mesh axis, as a parameter of its own that knows where it belongs."""
    if parameter is None:
        return None
    mine = nn.Parameter(part.of(parameter.detach()), requires_grad=parameter.requires_grad)
    mine.mesh_layout = replace(layout_of(parameter), slice=part)
    lay_out(mine, split=axis)
    return mine
