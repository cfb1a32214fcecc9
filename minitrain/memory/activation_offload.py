"""Activation offload: tensors saved for backward wait in CPU memory, and return in time.

    GPU    f1 | f2 | f3 | df3 | df2 | df1
    link     →x1  →x2         x2→  x1→         out during the next layer, back ahead of use

The naive version copies every saved tensor, including weights, and copies one that five operations
save five times. Here each storage is sent once, parameters and small tensors stay, and `ahead`
storages are being fetched back while backward computes.
Cost: each byte crosses the link twice; hidden as long as bytes / bandwidth < seconds of compute.
Papers: Rhu et al. 2016 (vDNN), arXiv 1602.08124; Ren et al. 2021, 2101.06840. Lab: e05.
"""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from minitrain.errors import InputError


def offload_naive() -> AbstractContextManager:
    """Moves each tensor that autograd saves in the block to the CPU, blocking all other
    work."""
    return saved_tensors_hooks(
        lambda tensor: (tensor.device, tensor.to("cpu", copy=True)),
        lambda packed: packed[1].to(packed[0]),
    )


class Offload:
    """Offload for a forward inside `with Offload():`, each storage once and fetched ahead of use.

    A checkpoint in the block offloads its inputs and what its policy keeps; the rest it recomputes.
    `sent_bytes` and `fetched_bytes` count the bytes that crossed the link.
    """

    def __init__(self, least_bytes: int = 64 * 2**10, ahead: int = 2) -> None:
        if least_bytes < 0 or ahead < 0:
            raise InputError(f"least_bytes={least_bytes}, ahead={ahead}: neither can be negative")
        self.least_bytes, self.ahead = least_bytes, ahead
        self.sent_bytes = self.fetched_bytes = 0
        self.streams: dict[torch.device, Any] = {}  # a separate link for each GPU
        self._sent: list[weakref.ref[_Copy]] = []  # in order; backward needs them about in reverse
        self._known: dict[tuple[int, int], tuple[weakref.ref, weakref.ref[_Copy]]] = {}
        self._hooks = saved_tensors_hooks(self._pack, _unpack)

    def __enter__(self) -> Offload:
        if all(copy() is None for copy in self._sent):  # those of an earlier step
            self._sent.clear()
        self._hooks.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._hooks.__exit__(*exception)
        self._known.clear()

    def _pack(self, tensor: Tensor) -> Tensor | _Note:
        base = tensor if tensor._base is None else tensor._base
        stays = isinstance(base, nn.Parameter) or tensor.layout != torch.strided
        if stays or tensor.untyped_storage().nbytes() < self.least_bytes:
            return tensor
        place = (tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride())
        return _Note(self._copy_of(tensor), place)

    def _copy_of(self, tensor: Tensor) -> _Copy:
        """The copy of the storage as it is now; after an in-place change, a new one."""
        storage = tensor.untyped_storage()
        key = (storage._cdata, tensor._version)
        known, copy = self._known.get(key, (_gone, _gone))
        if known() is not None and copy() is not None:  # else the address was reused
            return copy()
        made = _Copy(self, storage, len(self._sent))
        self._known[key] = (weakref.ref(storage), weakref.ref(made))
        self._sent.append(weakref.ref(made))
        return made

    def fetch_before(self, number: int) -> None:
        """Starts fetching the storages that backward will need next."""
        for reference in self._sent[max(0, number - self.ahead) : number]:
            copy = reference()
            if copy is not None:
                copy.start_fetch()

    def stream(self, device: torch.device) -> AbstractContextManager:
        """A stream beside the compute stream; a CPU has none, and copies at once."""
        if device.type != "cuda":
            return nullcontext()
        if device not in self.streams:
            self.streams[device] = torch.cuda.Stream(device)
        return torch.cuda.stream(self.streams[device])


def _gone() -> None:
    return None


class _Copy:
    """One storage's bytes on the CPU and, once requested, on its device again."""

    def __init__(self, offload: Offload, storage: torch.UntypedStorage, number: int) -> None:
        self.offload, self.number, self.device = offload, number, storage.device
        source = _bytes_of(storage)
        on_gpu = self.device.type == "cuda"
        self.host = torch.empty(source.shape, dtype=torch.uint8, pin_memory=on_gpu)
        self.back: Tensor | None = None
        if on_gpu:  # the link waits until the storage is written, the allocator until it is read
            source.record_stream(self._link())
            self._link().wait_stream(torch.cuda.current_stream(self.device))
        with offload.stream(self.device):
            self.host.copy_(source, non_blocking=True)
        offload.sent_bytes += len(source)

    def start_fetch(self) -> None:
        if self.back is None:
            with self.offload.stream(self.device):  # after its own copy out
                self.back = self.host.to(self.device, non_blocking=True, copy=True)
            self.offload.fetched_bytes += len(self.back)

    def storage(self) -> torch.UntypedStorage:
        self.start_fetch()
        if self.device.type == "cuda":
            compute = torch.cuda.current_stream(self.device)
            compute.wait_stream(self._link())
            self.back.record_stream(compute)
        self.offload.fetch_before(self.number)
        return self.back.untyped_storage()

    def _link(self) -> torch.cuda.Stream:
        with self.offload.stream(self.device):
            return torch.cuda.current_stream(self.device)


@dataclass(frozen=True)
class _Note:
    """The graph's reference to an offloaded tensor: its copy, and its place in it."""

    copy: _Copy
    place: tuple[torch.dtype, int, torch.Size, tuple[int, ...]]


def _unpack(packed: Tensor | _Note) -> Tensor:
    if isinstance(packed, Tensor):
        return packed
    dtype, *where = packed.place
    storage = packed.copy.storage()
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, *where)


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    """The storage's raw memory, (bytes,) uint8."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
