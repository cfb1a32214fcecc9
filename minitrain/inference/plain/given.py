"""Helpers provided to lab e09: a digest, low-bit codes, the bytes that an object holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor


def digest(*parts: object) -> bytes:
    """32 bytes for any values, distinct for distinct values."""
    return sha256(repr(parts).encode()).digest()


Codes = tuple[Tensor, Tensor, Tensor]


def to_codes(x: Tensor, dim: int, bits: int) -> Codes:
    """-> codes uint8 shaped like x; step and minimum float32, with size 1 along `dim`: elements
    along it share one range."""
    low, high = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True)
    step = (high - low) / (2**bits - 1)
    codes = ((x - low) / step.clamp(min=torch.finfo(x.dtype).tiny)).round()
    return codes.to(torch.uint8), step, low


def from_codes(codes: Tensor, step: Tensor, low: Tensor) -> Tensor:
    return codes * step + low


def held_bytes(*things: Any) -> int:
    """Bytes held; each storage counts once and in full: a slice keeps its whole tensor alive."""
    storages = {
        storage.data_ptr(): storage.nbytes()
        for storage in (tensor.untyped_storage() for tensor in tensors_in(things, set()))
    }
    return sum(storages.values())


def tensors_in(thing: Any, seen: set[int]) -> Iterator[Tensor]:
    """Yields the tensors in lists, tuples, sets, dicts and attributes."""
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
