"""Placement of a rank's tensor in the whole one, as boxes, so that any ranks can read any others'.

    whole (6, 4)      tp rank 1 of 2         ZeRO rank 1 of 3: elements 8 … 15, flattened
    . . . .           . . . .                . . . .
    . . . .           . . . .                . . . .
    . . . .           . . . .                # # # #      full rows: one box
    . . . .           # # # #                # # # #
    . . . .           # # # #                . . . .
    . . . .           # # # #                . . . .

A run of elements that begins or ends within a row is 3 boxes in a matrix, 2d - 1 in d dimensions.
torch.distributed.checkpoint has boxes too ("chunks"), so it can read ours. Lab: e12.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Box:
    """`shape` elements from `offsets` of a whole tensor; `find` gives their view in the rank's."""

    offsets: Shape
    shape: Shape
    find: Callable[[Tensor], Tensor]

    def overlap(self, offsets: Sequence[int], shape: Sequence[int]) -> tuple[slice, ...] | None:
        """The intersection of this box and another, in the whole's indices; None if it is empty."""
        lows = [max(a, b) for a, b in zip(self.offsets, offsets)]
        highs = [min(a + n, b + m) for a, n, b, m in zip(self.offsets, self.shape, offsets, shape)]
        if any(low >= high for low, high in zip(lows, highs)):
            return None
        return tuple(map(slice, lows, highs))


@dataclass(frozen=True)
class Place:
    """One tensor of the whole, and the rank's part of it.

    `held` are the boxes that the rank needs when it loads, `owned` those that it writes: of several
    copies one is written. `local` is the shape of the rank's own tensor.
    """

    name: str
    whole: Shape
    local: Shape
    held: tuple[Box, ...]
    owned: tuple[Box, ...]

    @property
    def is_whole(self) -> bool:
        return self.local == self.whole

    @property
    def owns_first(self) -> bool:
        """True if this rank writes the element at 0, 0, …, and with it the state stored once per
        tensor."""
        return any(not any(box.offsets) for box in self.owned)


@dataclass(frozen=True)
class Placed:
    """A rank's weights (and buffers), and the parameters of its optimizer in state_dict order, each
    with its place."""

    weights: list[tuple[Place, Tensor]]
    parameters: list[Place]
    is_shared: bool = False  # every rank has a part, and writes a file of its own
    settle: Callable[[], object] = lambda: None  # after a load: updates what depends on weights


def whole_place(name: str, shape: Sequence[int], writes: bool = True) -> Place:
    """The place of a tensor that the rank has in full."""
    box = Box((0,) * len(shape), tuple(shape), lambda tensor: tensor)
    return Place(name, tuple(shape), tuple(shape), (box,), (box,) if writes else ())


def range_place(name: str, whole: Shape, start: int, local: Shape) -> Place:
    """Elements start … start + n of the flattened whole; the rank's own has n, in any shape."""
    boxes, at = [], 0
    for offsets, shape in boxes_of_range(start, start + math.prod(local), whole):
        size = math.prod(shape)
        boxes.append(Box(offsets, shape, partial(_of_flat, start=at, shape=shape)))
        at += size
    return Place(name, whole, local, tuple(boxes), tuple(boxes))


def _of_flat(tensor: Tensor, start: int, shape: Shape) -> Tensor:
    return tensor.view(-1)[start : start + math.prod(shape)].view(shape)


def boxes_of_range(start: int, stop: int, whole: Shape) -> Iterator[tuple[Shape, Shape]]:
    """(offsets, shape) of boxes that together are these elements of the flattened whole, in order.

    >>> list(boxes_of_range(2, 9, (4, 3)))
    [((0, 2), (1, 1)), ((1, 0), (2, 3))]
    """
    if start >= stop:
        return
    if len(whole) < 2:
        yield (start,) * len(whole), (stop - start,) * len(whole)
        return
    row = math.prod(whole[1:])
    first, last = -(-start // row), stop // row  # the full rows
    if first > last:
        yield from _within_row(last, start, stop, whole)
        return
    yield from _within_row(first - 1, start, first * row, whole)
    if first < last:
        rest = whole[1:]
        yield (first, *(0 for _ in rest)), (last - first, *rest)
    yield from _within_row(last, last * row, stop, whole)


def _within_row(index: int, start: int, stop: int, whole: Shape) -> Iterator[tuple[Shape, Shape]]:
    begin = index * math.prod(whole[1:])
    for offsets, shape in boxes_of_range(start - begin, stop - begin, whole[1:]):
        yield (index, *offsets), (1, *shape)
