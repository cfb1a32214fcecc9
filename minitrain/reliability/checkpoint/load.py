"""Fills a run's state from a checkpoint, bit for bit, on the ranks that saved it or on others.

    stored   | rank 0 ......... | rank 1 ......... |
    wanted   | rank 0 ... | rank 1 ... | rank 2 .. |      rank 1 reads from both files

Only the elements needed are read: safetensors gives slices of a tensor. Everything is checked
before any change: checksums, names, shapes, and that nothing is missing. Lab: e12.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from minitrain.errors import InputError
from minitrain.generators import GeneratorStates, restore_generators
from minitrain.reliability.checkpoint.contents import (
    ALONE,
    EXTRA,
    CheckpointRanks,
    Layout,
    extra_states,
    fill_extra,
    read_extra,
    whole_layout,
)
from minitrain.reliability.checkpoint.files import DTYPES, OFFSETS, SHARDING
from minitrain.reliability.checkpoint.folder import newest_checkpoint, verify
from minitrain.reliability.checkpoint.placement import Place, Placed, Shape, whole_place
from minitrain.training.state import TrainState

TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}
Indices = tuple[slice, ...]
Copy = tuple["StoredBox", Indices, Tensor]  # indices in the whole, and the destination view


def load_checkpoint(
    path: str | os.PathLike,
    state: TrainState,
    ranks: CheckpointRanks = ALONE,
    layout: Layout | None = None,
) -> TrainState:
    """Fills `state` (and this rank's random generators) from a checkpoint, or from a run's newest.

    On InputError `state` is unchanged.
    """
    folder = newest_checkpoint(path)
    manifest = verify(folder)
    same = manifest["ranks"] == ranks.size
    if not same and not ranks.may_change:
        raise InputError(
            f"{folder} was saved by {manifest['ranks']} ranks and {ranks.size} would resume it; "
            f"each has its own random state: use {manifest['ranks']} ranks, or start a new run"
        )
    placed = (layout or whole_layout())(state, ranks)
    extra = _extra(folder, state.extra)
    progress = json.loads((folder / "progress.json").read_text())
    if ("scaler" in progress) != (state.scaler is not None):
        has = "a loss scaler" if state.scaler is None else "no loss scaler"
        raise InputError(f"{folder} has {has}, and this state is otherwise: resume as it was saved")
    _fill(folder, state, placed)
    own = ranks.rank if ranks.rank < manifest["ranks"] else 0
    _read_own(folder, state.loader, f"rank-{own:03d}")
    state.step, state.tokens = progress["step"], progress["tokens"]
    state.seconds, state.run = progress["seconds"], manifest.get("run") or state.run
    fill_extra(state.extra, extra)
    if state.scaler is not None:
        state.scaler.load_state_dict(progress["scaler"])
    return state


@torch.no_grad()
def _fill(folder: Path, state: TrainState, placed: Placed) -> None:
    """Model and optimizer."""
    with ExitStack() as stack:
        weights, kept = (Stored(folder, kind, stack) for kind in ("model", "optimizer"))
        weights.check_names(placed)
        settings, plain = _settings(folder)
        groups = _groups(folder, state.optimizer.param_groups, placed.parameters, settings)
        _check_state_names(folder, kept, plain, placed)
        copies = [copy for place, t in placed.weights for copy in weights.copies(place, t)]
        moments = _state(kept, placed.parameters, plain)
        # First: it waits until a background save has copied what is about to change.
        state.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        make(copies)
    placed.settle()


def _extra(folder: Path, extra: dict[str, Any]) -> dict[str, Any]:
    """The checkpoint's values for each name; raises InputError if the names differ."""
    file = folder / EXTRA
    states = read_extra(file.read_bytes()) if file.is_file() else {}
    if states.keys() != extra.keys():
        raise InputError(
            f"{folder} was saved with extra of {', '.join(states) or 'nothing'}, and this state "
            f"has {', '.join(extra) or 'nothing'}: give TrainState(extra=…) the same names"
        )
    extra_states(extra)
    return states


def _state(stored: Stored, places: list[Place], plain: dict[str, Any]) -> dict[int, dict]:
    """The optimizer's state of each parameter, by parameter number."""
    kinds: dict[str, list[str]] = {}
    for key in (*stored.boxes, *plain):
        name, kind = key.removeprefix("state.").rsplit(".", 1)
        kinds.setdefault(name, []).append(kind)
    state: dict[int, dict] = {}
    for index, place in enumerate(places):
        for kind in kinds.get(place.name, ()):
            key = f"state.{place.name}.{kind}"
            value = plain[key] if key in plain else stored.tensor(_state_place(stored, place, key))
            state.setdefault(index, {})[kind] = value
    return state


def _state_place(stored: Stored, place: Place, key: str) -> Place:
    """The place of state that is laid out as its parameter, or that each rank has in full."""
    shape = stored.shape(key)
    return replace(place, name=key) if shape == place.whole else whole_place(key, shape)


def _settings(folder: Path) -> tuple[dict[str, tuple[int, dict]], dict[str, Any]]:
    """Each parameter's group, by name: number and settings; and the non-tensor state. If some rank
    lacks a group, numbers are ignored: equal settings then make one group."""
    settings, plain, known = {}, {}, []
    whole = folder / "optimizer.json"
    for path in [whole] if whole.is_file() else sorted(folder.glob("optimizer-*.json")):
        read = json.loads(path.read_text())
        plain |= read["plain"]
        for group in read["param_groups"]:
            own = {name: value for name, value in group.items() if name != "params"}
            if path == whole or own not in known:
                known.append(own)
            number = len(known) - 1 if path == whole else known.index(own)
            settings |= dict.fromkeys(group["params"], (number, own))
    return settings, plain


def _groups(
    folder: Path, groups: list[dict], places: list[Place], settings: dict[str, tuple[int, dict]]
) -> list[dict]:
    out, start = [], 0
    taken: dict[int, str] = {}  # group there -> its first parameter here
    for group in groups:
        numbers = range(start, start + len(group["params"]))
        start = numbers.stop
        names = [places[number].name for number in numbers]
        if missing := [name for name in names if name not in settings]:
            raise InputError(
                f"{folder} has no optimizer settings for {missing[0]}: resume with the optimizer "
                "that the run was started with"
            )
        own = {name: value for name, value in group.items() if name != "params"}
        for number, theirs in (settings[name] for name in names):
            if taken.setdefault(number, names[0]) != names[0]:
                raise _regrouped(folder, f"{taken[number]} and {names[0]} are of one group")
            if number != settings[names[0]][0]:
                raise _regrouped(folder, f"those of {names[0]}'s group are of several")
            own |= {
                name: torch.as_tensor(value) if isinstance(own.get(name), Tensor) else value
                for name, value in theirs.items()
            }
        out.append({**own, "params": list(numbers)})
    return out


def _regrouped(folder: Path, why: str) -> InputError:
    return InputError(
        f"the optimizer's groups are not those of {folder}, where {why}: resume with the same "
        "groups, whose settings are saved"
    )


def _check_state_names(folder: Path, kept: Stored, plain: dict[str, Any], placed: Placed) -> None:
    """Raises InputError if there is state of a parameter that this optimizer does not update."""
    names = {place.name for place in placed.parameters}
    there = {key.removeprefix("state.").rsplit(".", 1)[0] for key in (*kept.boxes, *plain)}
    if not placed.is_shared and (unknown := sorted(there - names)):
        raise InputError(
            f"{folder} has optimizer state of {unknown[0]}, which this optimizer does not move: "
            "resume with the parameters that the run was started with"
        )


def _read_own(folder: Path, loader: Any, name: str) -> None:
    own = json.loads((folder / f"{name}.json").read_text())
    loader.load_state_dict(own["loader"])
    with safe_open(str(folder / f"{name}.safetensors"), framework="pt") as file:
        states = {key.removeprefix(f"{name}."): file.get_tensor(key) for key in list(file.keys())}
    version, words, gauss = own["python"]
    restore_generators(
        GeneratorStates(
            torch={torch.device(device): state for device, state in states.items()},
            numpy=tuple(own["numpy"]),
            python=(version, tuple(words), gauss),
        )
    )


class StoredBox(NamedTuple):
    """Elements of a tensor in a file, at `offsets` in the whole tensor."""

    file: Any
    key: str
    offsets: Shape
    shape: Shape
    dtype: torch.dtype

    def read(self, where: Indices) -> Tensor:
        """The elements at these indices of the whole tensor; a scalar has none."""
        inside = tuple(slice(s.start - o, s.stop - o) for s, o in zip(where, self.offsets))
        return self.file.get_slice(self.key)[inside] if inside else self.file.get_tensor(self.key)


class Stored:
    """The tensors in all files of one kind, `model.safetensors` or `model-000…` of several ranks:
    by name, as the list of their stored boxes."""

    def __init__(self, folder: Path, kind: str, stack: ExitStack) -> None:
        self.folder, self.boxes = folder, dict[str, list[StoredBox]]()
        for path in sorted(folder.glob(f"{kind}[.-]*safetensors")):
            for box in _boxes(stack.enter_context(safe_open(str(path), framework="pt"))):
                others = self.boxes.setdefault(box.key, [])
                if all((box.offsets, box.shape) != (o.offsets, o.shape) for o in others):
                    others.append(box)

    def shape(self, key: str) -> Shape:
        """The shape of the whole tensor, from the extent of its boxes."""
        ends = ([o + n for o, n in zip(box.offsets, box.shape)] for box in self.boxes[key])
        return tuple(map(max, zip(*ends)))

    def check_names(self, placed: Placed) -> None:
        """Checks names and shapes; if every rank has a part, others' names may be missing here."""
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
            *(
                f"{place.name} is an expanded tensor here, which cannot be filled: clone() it"
                for place, tensor in placed.weights
                if torch._debug_has_internal_overlap(tensor) == 1
            ),
        ]
        if differences:
            raise InputError(
                f"{self.folder} holds a model of another shape or type ({differences[0]}): resume "
                "with the options that the run was started with, or give a new run another --out"
            )

    def copies(self, place: Place, tensor: Tensor) -> list[Copy]:
        """The copies that fill a rank's tensor; InputError if some elements are not stored."""
        found = []
        for box in place.held:
            target, elements = box.find(tensor), 0
            for source in self.boxes.get(place.name, ()):
                where = box.overlap(source.offsets, source.shape)
                if where is None:
                    continue
                inside = tuple(slice(s.start - o, s.stop - o) for s, o in zip(where, box.offsets))
                found.append((source, where, target[inside] if inside else target))
                elements += math.prod(s.stop - s.start for s in where)
            if elements != math.prod(box.shape):
                raise InputError(
                    f"{self.folder} has {elements} of the {math.prod(box.shape)} elements of "
                    f"{place.name} that this rank needs: a rank's file is missing; take an older "
                    "step"
                )
        return found

    def tensor(self, place: Place) -> Tensor:
        """A new tensor with this rank's part; a whole one is a view of the file in memory."""
        box = self.boxes[place.name][0]
        if place.is_whole and box.shape == place.whole:
            return box.file.get_tensor(box.key)
        out = torch.zeros(place.local, dtype=box.dtype)
        make(self.copies(place, out))
        return out


def make(copies: Iterable[Copy]) -> None:
    for source, where, target in copies:
        target.copy_(source.read(where))


def _boxes(file: Any) -> Iterator[StoredBox]:
    sharding = json.loads((file.metadata() or {}).get(SHARDING, "{}"))
    for key in list(file.keys()):
        view = file.get_slice(key)
        shape = tuple(view.get_shape())
        offsets = tuple(sharding[key][OFFSETS]) if key in sharding else (0,) * len(shape)
        yield StoredBox(file, key, offsets, shape, TORCH_DTYPES[view.get_dtype()])
