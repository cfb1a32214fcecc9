"""Bytes of all tensors that an object holds, wherever it keeps them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor


def held_bytes(*things: Any) -> int:
    """Each storage counts once and whole: a slice keeps all of its tensor alive."""
    storages = {
        storage.data_ptr(): storage.nbytes()
        for storage in (tensor.untyped_storage() for tensor in tensors_in(things, set()))
    }
    return sum(storages.values())


def tensors_in(thing: Any, seen: set[int]) -> Iterator[Tensor]:
    """In lists, tuples, sets, dicts and attributes."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        yield thing
        return
    if isinstance(thing, Mapping):
        parts: Any = list(thing.values())
    elif isinstance(thing, (list, tuple, set, frozenset)):
        parts = list(thing)
    else:
        parts = list(getattr(thing, "__dict__", {}).values())
    for part in parts:
        yield from tensors_in(part, seen)
