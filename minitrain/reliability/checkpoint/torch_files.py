"""torch.distributed.checkpoint's files, read here; and how it reads ours.

    theirs   .metadata (boxes, a pickle) and *.distcp: `load_torch_checkpoint`, on any ranks
    theirs   *.safetensors of HuggingFaceStorageWriter: boxes as ours, the same call
    ours     dcp.load({"embed.weight": …, "state.embed.weight.exp_avg": …}, storage_reader=
             HuggingFaceStorageReader(folder)): names lie flat, as get_state_dict flattens them

A pickle may run any code when it is read. Here only the classes that torch's metadata is made of
may be named in it, and tensors are read with weights_only. Lab: e12.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minitrain.errors import InputError
from minitrain.reliability.checkpoint.contents import ALONE, CheckpointRanks, Layout, whole_layout
from minitrain.reliability.checkpoint.load import Stored, StoredBox, fill, stored_in
from minitrain.training.state import TrainState

METADATA = ".metadata"
DTYPES = {str(d).removeprefix("torch.") for d in vars(torch).values() if isinstance(d, torch.dtype)}
ALLOWED = {
    "torch.distributed.checkpoint.metadata": None,  # all its classes
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", *DTYPES},
    "pathlib": {"PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"},
    "collections": {"OrderedDict"},
}


def load_torch_checkpoint(
    folder: str | os.PathLike,
    state: TrainState,
    ranks: CheckpointRanks = ALONE,
    layout: Layout | None = None,
    model: str = "model.",
    optimizer: str = "optim.state.",
) -> TrainState:
    """Weights, and the optimizer's state where there is any, from a folder that torch has written.

    `model` and `optimizer`: the prefixes of the names, by default those of `dcp.save({"model": …,
    "optim": …})` with what get_state_dict gave. The optimizer keeps its own settings; torch's files
    have no steps, data and generators. InputError leaves `state` as it was.
    """
    folder, placed = Path(folder), (layout or whole_layout())(state, ranks)
    with ExitStack() as stack:
        boxes = list(_boxes(folder, stack))
        weights = Stored(folder, _named(boxes, model, ""))
        weights.check_names(placed)
        kept = Stored(folder, _named(boxes, optimizer, "state."))
        groups = state.optimizer.state_dict()["param_groups"]
        fill(state, placed, weights, kept, groups, plain={})
    return state


def _named(
    boxes: list[tuple[str, StoredBox]], prefix: str, ours: str
) -> list[tuple[str, StoredBox]]:
    """Those whose name has the prefix, with our own instead."""
    return [(ours + n.removeprefix(prefix), box) for n, box in boxes if n.startswith(prefix)]


def _boxes(folder: Path, stack: ExitStack) -> Iterator[tuple[str, StoredBox]]:
    if not (folder / METADATA).is_file():
        stored = stored_in(folder, "*", stack)
        if not stored.boxes:
            raise InputError(
                f"{folder} has neither {METADATA} nor *.safetensors: give a folder that "
                "torch.distributed.checkpoint has written"
            )
        yield from ((name, box) for name, boxes in stored.boxes.items() for box in boxes)
        return
    metadata = _read_metadata(folder / METADATA)
    for index, info in metadata.storage_data.items():
        about = metadata.state_dict_metadata[index.fqn]
        for chunk in getattr(about, "chunks", ()):  # what is no tensor has none
            if index.offset is None or tuple(chunk.offsets) == tuple(index.offset):
                read = partial(_read, folder / info.relative_path, info.offset, info.length)
                shape, dtype = tuple(chunk.sizes), about.properties.dtype
                yield index.fqn, StoredBox(tuple(chunk.offsets), shape, dtype, read)


def _read(path: Path, start: int, length: int, inside: tuple[slice, ...] | None) -> Tensor:
    with open(path, "rb") as file:
        file.seek(start)
        tensor = torch.load(io.BytesIO(file.read(length)), weights_only=True, map_location="cpu")
    return tensor if inside is None else tensor[inside]


class _Metadata(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        allowed = ALLOWED.get(module, ())
        if allowed is not None and name not in allowed:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module, name)


def _read_metadata(path: Path) -> Any:
    try:
        with open(path, "rb") as file:
            return _Metadata(file).load()
    except (pickle.UnpicklingError, EOFError, OSError, AttributeError) as error:
        raise InputError(
            f"{path} is no metadata of torch.distributed.checkpoint ({error}): give the folder "
            "that dcp.save wrote"
        ) from error
