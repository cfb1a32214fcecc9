"""The boxes of tensors that lie in a checkpoint's files, and copying what another box has of them.

    stored   | rank 0 ......... | rank 1 ......... |
    wanted   | rank 0 ... | rank 1 ... | rank 2 .. |      rank 1 reads from both files

Only what is wanted is read: safetensors gives slices of a tensor. Lab: e12.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from minitrain.errors import InputError
from minitrain.reliability.checkpoint.files import DTYPES, OFFSETS, SHARDING
from minitrain.reliability.checkpoint.placement import Place, Placed, Shape

TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}


def stored_in(folder: Path, kind: str, stack: ExitStack) -> Stored:
    """The tensors in all files of one kind: `model.safetensors`, or `model-000…` of
    several ranks."""
    paths = sorted([*folder.glob(f"{kind}.*"), *folder.glob(f"{kind}-*")])
    files = (
        stack.enter_context(safe_open(str(path), framework="pt"))
        for path in paths
        if path.suffix == ".safetensors"
    )
    return Stored(folder, (box for file in files for box in _boxes(file)))


def _boxes(file: Any) -> Iterator[tuple[str, StoredBox]]:
    sharding = json.loads((file.metadata() or {}).get(SHARDING, "{}"))
    for key in list(file.keys()):
        view = file.get_slice(key)
        shape = tuple(view.get_shape())
        offsets = tuple(sharding[key][OFFSETS]) if key in sharding else (0,) * len(shape)
        read = partial(_read, file, key) if shape else partial(_read_number, file, key)
        yield key, StoredBox(offsets, shape, TORCH_DTYPES[view.get_dtype()], read)


def _read(file: Any, key: str, inside: tuple[slice, ...] | None) -> Tensor:
    return file.get_tensor(key) if inside is None else file.get_slice(key)[inside]


def _read_number(file: Any, key: str, inside: tuple[slice, ...] | None) -> Tensor:
    return file.get_tensor(key)


class StoredBox(NamedTuple):
    offsets: Shape
    shape: Shape
    dtype: torch.dtype
    read: Callable[[tuple[slice, ...] | None], Tensor]  # indices in the box, None: all of it


class Copy(NamedTuple):
    """Elements of a stored box, and the view that they go to."""

    source: StoredBox
    where: tuple[slice, ...]
    target: Tensor

    def make(self) -> None:
        inside = (slice(s.start - o, s.stop - o) for s, o in zip(self.where, self.source.offsets))
        self.target.copy_(self.source.read(tuple(inside)))


class Stored:
    """A checkpoint's tensors by name, each as the boxes that it is stored in."""

    def __init__(self, folder: Path, boxes: Iterable[tuple[str, StoredBox]]) -> None:
        self.folder, self.boxes = folder, dict[str, list[StoredBox]]()
        for name, box in boxes:
            others = self.boxes.setdefault(name, [])
            if (box.offsets, box.shape) not in [(other.offsets, other.shape) for other in others]:
                others.append(box)

    def shape(self, key: str) -> Shape:
        """The shape of the whole tensor: as far as its boxes reach."""
        ends = ([o + n for o, n in zip(box.offsets, box.shape)] for box in self.boxes[key])
        return tuple(map(max, zip(*ends)))

    def check_names(self, placed: Placed) -> None:
        """The same names and shapes; where every rank has a part, it lacks others' names."""
        here = {place.name: place.whole for place, _ in placed.weights}
        there = {name: self.shape(name) for name in self.boxes}
        shared = placed.is_shared
        differences = [
            *(
                f"{name} is {shape} there and {here[name]} here"
                for name, shape in there.items()
                if shape != here.get(name, shape)
            ),
            *(f"{name} is only there" for name in there if name not in here and not shared),
            *(f"{name} is only here" for name in here if name not in there),
            *(
                f"{place.name} is {box.dtype} there and {tensor.dtype} here"
                for place, tensor in placed.weights
                for box in self.boxes.get(place.name, ())
                if torch.promote_types(box.dtype, tensor.dtype) != tensor.dtype  # would be rounded
            ),
        ]
        if differences:
            raise InputError(
                f"{self.folder} holds a model of another shape or type ({differences[0]}): resume "
                "with the options that the run was started with, or give a new run another --out"
            )

    def copies(self, place: Place, tensor: Tensor) -> list[Copy]:
        """The copies that fill a rank's tensor; InputError where some of it is nowhere."""
        found = []
        for box in place.held:
            target, elements = box.find(tensor), 0
            for source in self.boxes.get(place.name, ()):
                where = box.overlap(source.offsets, source.shape)
                if where is None:
                    continue
                inside = tuple(slice(s.start - o, s.stop - o) for s, o in zip(where, box.offsets))
                found.append(Copy(source, where, target[inside] if inside else target))
                elements += math.prod(s.stop - s.start for s in where)
            if elements != math.prod(box.shape):
                raise InputError(
                    f"{self.folder} has {elements} of the {math.prod(box.shape)} elements of "
                    f"{place.name} that this rank needs: a rank's file is missing; take an older "
                    "step"
                )
        return found

    def tensor(self, place: Place) -> Tensor:
        """A new one with what this rank has of it; a whole one as a view of the file in memory."""
        boxes = self.boxes[place.name]
        if place.is_whole and boxes[0].shape == place.whole:
            return boxes[0].read(None)
        out = torch.zeros(place.local, dtype=boxes[0].dtype)
        for copy in self.copies(place, out):
            copy.make()
        return out
