"""Contents of a checkpoint, by name: weights, optimizer, counts, generators, data position.

    model.safetensors        weights and buffers (including FP8's histories)
    optimizer.safetensors    state.NAME.exp_avg …: by parameter, so that other ranks can read it
    optimizer.json           the settings of each parameter's group, and non-tensor state
    progress.json            step, tokens, seconds, the loss scaler; the schedule follows from these
    extra.pt                 other state of the run, from TrainState.extra
    rank-000.safetensors     one rank's random generators    rank-000.json   its data position

If every rank has a part, the first three are model-000…, model-001…: one per rank. Lab: e12.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from minitrain.errors import InputError
from minitrain.generators import generator_states
from minitrain.reliability.checkpoint.files import Box
from minitrain.reliability.checkpoint.placement import Place, Placed, whole_place
from minitrain.training.state import TrainState

EXTRA = "extra.pt"
OWN_FILES = ("progress.json", "optimizer.json", "manifest.json", EXTRA)
Named = Callable[[nn.Module], dict[str, Tensor]]  # a model's tensors, or views of them, by name


@dataclass(frozen=True)
class CheckpointRanks:
    """The ranks that share a checkpoint, this one's number, and a `barrier` that waits for all.

    `may_change`: a different number of ranks may resume, if training draws no random numbers; a new
    rank then starts at rank 0's position in the data.
    """

    rank: int = 0
    size: int = 1
    barrier: Callable[[], object] = lambda: None
    may_change: bool = False


ALONE = CheckpointRanks()
Layout = Callable[[TrainState, CheckpointRanks], Placed]


@dataclass(frozen=True)
class Contents:
    """One rank's files: boxes of tensors, by file name without its suffix, and other files.

    `still` tells whether only the optimizer's step changes a tensor: true of the weights and the
    optimizer's state. Buffers and generators may change in the next forward.
    """

    step: int
    run: str  # the run that it belongs to
    tensors: dict[str, list[Box]]
    files: dict[str, bytes]
    still: frozenset[str]


def own_names(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by their own names; a tied one by its first name."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, Tensor):
            raise InputError(
                f"{name} is a {type(tensor).__name__} and no tensor: keep it in TrainState.extra"
            )
        found.setdefault(id(tensor), (uncompiled(name), tensor.detach()))
    return dict(found.values())


def uncompiled(name: str) -> str:
    """The name without what torch.compile puts before it."""
    return name.replace("_orig_mod.", "")


def whole_layout(named: Named = own_names) -> Layout:
    """The layout if every rank has the whole model, with names from `named`; rank 0 writes it."""

    def layout(state: TrainState, ranks: CheckpointRanks) -> Placed:
        if state.model is None:  # the whole model was assembled on another rank
            return Placed([], [])
        check_whole(state.model)
        writes = ranks.rank == 0
        weights = {**named(state.model), **_only_moved(state)}
        places = [(whole_place(n, t.shape, writes), t) for n, t in weights.items()]
        return Placed(places, [whole_place(n, p.shape, writes) for n, p in _moved(state)])

    return layout


def check_whole(model: nn.Module) -> None:
    """Raises InputError if this rank has only parts of the model, which it cannot save alone."""
    whole = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
    parameters = list(model.parameters())
    if any(isinstance(p, DTensor) for p in parameters):
        raise InputError(
            "the model's parameters are DTensors, of which a rank has a part: save it with "
            "torch.distributed.checkpoint, whose load fills a whole model as well"
        )
    if any(id(p) not in whole or hasattr(p, "mesh_layout") for p in parameters):
        raise InputError(
            "the model's parameters are parts of it: give layout=zero_layout(zero) for ZeRO, "
            "layout=mesh_layout(parts) for a mesh"
        )


def _moved(state: TrainState) -> list[tuple[str, Tensor]]:
    """The optimizer's parameters by the model's names; by number if it updates others than the
    model's (a float32 copy of each)."""
    names = {id(p): uncompiled(name) for name, p in state.model.named_parameters()}
    moved = (p for group in state.optimizer.param_groups for p in group["params"])
    return [(names.get(id(p), str(index)), p) for index, p in enumerate(moved)]


def _only_moved(state: TrainState) -> dict[str, Tensor]:
    """Parameters of the optimizer that are not the model's, such as a loss's temperature; the
    masters of MasterWeights are in its state."""
    own = {id(p) for p in (*state.model.parameters(), *getattr(state.optimizer, "masters", ()))}
    return {f"optimizer.{n}": p.detach() for n, p in _moved(state) if id(p) not in own}


def contents(
    state: TrainState, layout: Layout, ranks: CheckpointRanks, extra: Mapping[str, bytes]
) -> Contents:
    """This rank's part of the state as it is now: tensors are the run's own, not copies."""
    check_files(extra)
    tensors, files = {}, {}
    placed = layout(state, ranks)
    part = f"-{ranks.rank:03d}" if placed.is_shared else ""
    if placed.is_shared or ranks.rank == 0:
        weights = [box for place, tensor in placed.weights for box in _owned(place, tensor)]
        kept, settings = _optimizer(state.optimizer.state_dict(), placed.parameters)
        tensors |= {f"model{part}": weights, f"optimizer{part}": kept}
        files[f"optimizer{part}.json"] = _json(settings, "the optimizer's state or settings")
    still = {name for name, _, _ in tensors.get(f"optimizer{part}", ())}
    moved = {} if state.model is None else {_storage(p) for p in state.model.parameters()}
    still |= {place.name for place, tensor in placed.weights if _storage(tensor) in moved}
    if ranks.rank == 0:
        progress = {"step": state.step, "tokens": state.tokens, "seconds": state.seconds}
        if state.scaler is not None:
            progress["scaler"] = state.scaler.state_dict()
        files |= {"progress.json": json.dumps(progress).encode(), **extra}
        if state.extra:
            files[EXTRA] = _saved_extra(state.extra)
    own = f"rank-{ranks.rank:03d}"
    tensors[own], files[f"{own}.json"] = _own(state.loader, own)
    return Contents(state.step, state.run, tensors, files, frozenset(still))


def check_files(extra: Mapping[str, bytes]) -> None:
    """Refuses, on every rank, names of the checkpoint's own files and paths outside its folder."""
    for name, data in extra.items():
        own = name in OWN_FILES or re.fullmatch(r"(rank-|optimizer).*\.json|.*\.safetensors", name)
        if not name or own or Path(name).name != name or not isinstance(data, bytes):
            raise InputError(
                f"files has {name!r}, of {type(data).__name__}: give bytes under a plain file "
                f"name that no file of the checkpoint has ({', '.join(OWN_FILES)}, *.safetensors)"
            )


def extra_states(extra: dict[str, Any]) -> dict[str, Any]:
    """The state_dict of each extra object; a dict is its own state."""
    states = {}
    for name, value in extra.items():
        if not isinstance(value, dict) and not hasattr(value, "load_state_dict"):
            raise InputError(
                f"extra[{name!r}] is a {type(value).__name__}, which has no load_state_dict: give "
                "a dict, such as {'value': …}"
            )
        states[name] = value if isinstance(value, dict) else value.state_dict()
    return states


def fill_extra(extra: dict[str, Any], states: dict[str, Any]) -> None:
    for name, value in extra.items():
        if isinstance(value, dict):
            value.clear()
            value.update(states[name])
        else:
            value.load_state_dict(states[name])


def _saved_extra(extra: dict[str, Any]) -> bytes:
    data = io.BytesIO()
    try:
        torch.save(extra_states(extra), data)
        read_extra(data.getvalue())
    except (pickle.PickleError, AttributeError, TypeError) as error:
        raise InputError(
            f"extra of {', '.join(extra)} holds more than numbers, words and tensors, which alone "
            "can be read without running code: leave the rest out of it"
        ) from error
    return data.getvalue()


def read_extra(data: bytes) -> dict[str, Any]:
    """Reads extra objects without running any code."""
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _storage(tensor: Tensor) -> int:
    """A key that is equal for a parameter and all views of it."""
    return tensor.untyped_storage().data_ptr()


def _owned(place: Place, tensor: Tensor) -> Iterator[Box]:
    for box in place.owned:
        yield place.name, box.find(tensor.detach()), box.offsets


def _optimizer(kept: dict, places: list[Place]) -> tuple[list[Box], dict]:
    """Splits a state_dict into boxes named state.NAME.KIND, and the rest by parameter name."""
    boxes, plain = [], {}
    for index, values in kept["state"].items():
        place = places[index]
        for kind, value in values.items():
            key = f"state.{place.name}.{kind}"
            if not isinstance(value, Tensor):
                plain[key] = value
            elif tuple(value.shape) == place.local and place.local:
                boxes += [(key, box.find(value), box.offsets) for box in place.owned]
            elif place.is_whole or value.dim() == 0:
                if place.owns_first:
                    boxes.append((key, value, (0,) * value.dim()))
            else:
                raise InputError(
                    f"the optimizer's {kind} of {place.name} is {list(value.shape)}, its weight "
                    f"{list(place.local)} here, a part of {list(place.whole)}: of parts, only "
                    "state of the weight's own shape can be saved (AdamW's, SGD's, Lion's)"
                )
    return boxes, {"plain": plain, "param_groups": _groups(kept["param_groups"], places)}


def _groups(groups: list[dict], places: list[Place]) -> list[dict]:
    """Each group's settings, and the names of its parameters."""
    plain = (
        {k: v.item() if isinstance(v, Tensor) and v.dim() == 0 else v for k, v in group.items()}
        for group in groups
    )
    return [{**group, "params": [places[i].name for i in group["params"]]} for group in plain]


def _json(content: Any, name: str) -> bytes:
    try:
        return json.dumps(content).encode()
    except TypeError as error:
        raise InputError(
            f"{name} is more than numbers, words and a parameter's tensors ({error}), which a "
            "checkpoint cannot keep: save it with torch.save"
        ) from error


def _own(loader: Any, name: str) -> tuple[list[Box], bytes]:
    """The state of this rank alone: its generators, and its loader's position."""
    if not hasattr(loader, "state_dict"):
        raise InputError(
            f"the loader is a {type(loader).__name__} without state_dict, so that a resumed run "
            "would not know its place: give a Loader, or one of torchdata's"
        )
    states = generator_states()
    numpy_kind, words, *numpy_rest = states.numpy
    own = {
        "loader": loader.state_dict(),
        "numpy": [numpy_kind, words.tolist(), *numpy_rest],
        "python": states.python,
    }
    boxes = [(f"{name}.{device}", state, (0,)) for device, state in states.torch.items()]
    return boxes, _json(own, "the loader's state")
