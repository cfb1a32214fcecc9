"""Memory of a training step by category: the bytes held now, and at the moment of the peak.

    with MemoryLedger(model, optimizer) as ledger:
        loss = model(tokens); loss.backward(); optimizer.step()
    ledger.peak["activations"]

Every tensor that an operation reads or writes is entered by its *storage*, once, however many
views, tied weights or flat buckets share it, and removed when the storage is freed (detected by a
weak reference). Its category is its holder. The same on CPU, CUDA and `meta`, where nothing is
computed. Not seen: workspaces inside a kernel, and the allocator's rounding (512 bytes on CUDA) and
cache. It costs some 20 µs of Python an operation: measure bytes with it, not seconds.
`predict_memory` computes the same beforehand.
"""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from minitrain.words import memory_text

CATEGORIES = ("parameters", "buffers", "gradients", "optimizer", "activations", "temporaries")


@dataclass
class _Entry:
    """One storage: its bytes, its holder, and how many nodes of the graph save it.

    `unheld_since` is the ledger event at which it was entered, None once it had a holder.
    """

    reference: weakref.ref
    size: int
    category: str
    unheld_since: int | None
    saves: int = 0


class _Saved:
    """A stand-in for a saved tensor in autograd's graph; when it is collected, the tensor is no
    longer kept."""

    def __init__(self, ledger: MemoryLedger, entry: _Entry, tensor: Tensor):
        self.ledger, self.entry, self.tensor = ledger, entry, tensor

    def __del__(self) -> None:
        self.ledger._forget_saved(self.entry)


class MemoryLedger(TorchDispatchMode):
    """A ledger of bytes by category; a context manager that can be entered repeatedly.

    `now`, `peak` and `highest` are plain dicts from category to bytes:
      parameters, buffers   of `model`, tied ones once
      gradients             `.grad` of its parameters, a shared flat bucket once and whole
      optimizer             tensors in `optimizer.state`
      activations           what autograd saved for backward, unless it is one of the above
      temporaries           everything else alive: inputs, workspace, gradients in flight, and
                            recomputed tensors during backward

    `peak` is the breakdown at the moment when the total was highest since the ledger was made or
    `reset_peak` was called; `highest` has each category's own maximum. Only storages on `device`
    (the model's) are counted.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        device: torch.device | str | None = None,
    ):
        super().__init__()
        self.model, self.optimizer = model, optimizer
        first = next(iter(model.parameters()), torch.empty(0))
        self.device = torch.device(device) if device is not None else first.device
        self._entries: dict[int, _Entry] = {}
        self._bytes = dict.fromkeys(CATEGORIES, 0)
        self._peak, self._highest = dict(self._bytes), dict(self._bytes)
        self._event = self._peak_event = 0
        self._open: list[Any] = []  # to be undone at the end of the `with` block
        self._enter_holders()

    # Reading ------------------------------------------------------------------------------------

    @property
    def now(self) -> dict[str, int]:
        self._enter_holders()
        return dict(self._bytes)

    @property
    def peak(self) -> dict[str, int]:
        return dict(self._peak)

    @property
    def highest(self) -> dict[str, int]:
        return dict(self._highest)

    @property
    def now_bytes(self) -> int:
        return sum(self.now.values())

    @property
    def peak_bytes(self) -> int:
        return sum(self._peak.values())

    def reset_peak(self) -> None:
        """Restarts the search for the peak, from what is held now."""
        self._peak, self._highest, self._peak_event = self.now, self.now, self._next_event()

    def __repr__(self) -> str:
        now, peak = self.now, self.peak
        rows = [(name, now[name], peak[name]) for name in CATEGORIES]
        rows.append(("total", sum(now.values()), sum(peak.values())))
        lines = [f"{f'memory on {self.device}':<18}{'now':>12}{'at the peak':>14}"]
        lines += [f"{name:<18}{memory_text(n):>12}{memory_text(p):>14}" for name, n, p in rows]
        return "\n".join(lines)

    # Watching -----------------------------------------------------------------------------------

    def __enter__(self) -> MemoryLedger:
        self._enter_holders()
        hooks = torch.autograd.graph.saved_tensors_hooks(self._save, _unsave)
        hooks.__enter__()
        handles = [
            p.register_post_accumulate_grad_hook(self._enter_gradient)
            for p in self.model.parameters()
            if p.requires_grad
        ]
        if self.optimizer is not None:
            handles += [
                self.optimizer.register_step_pre_hook(self._enter_holders),
                self.optimizer.register_step_post_hook(self._enter_holders),
            ]
        self._open.append((hooks, handles))
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        hooks, handles = self._open.pop()
        hooks.__exit__(*exception)
        for handle in handles:
            handle.remove()
        self._enter_holders()

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        out = function(*arguments, **(options or {}))
        for tensor in tree_leaves((arguments, options, out)):
            if isinstance(tensor, Tensor):
                self._enter(tensor, "temporaries")
        return out

    def _save(self, tensor: Tensor) -> Tensor | _Saved:
        """Autograd's pack hook. A parameter saved for backward stays in its own category."""
        entries = self._enter(tensor, "activations")
        if len(entries) != 1 or entries[0].category != "activations":
            return tensor
        entries[0].saves += 1
        return _Saved(self, entries[0], tensor)

    def _forget_saved(self, entry: _Entry) -> None:
        entry.saves -= 1
        if entry.saves == 0 and entry.category == "activations" and entry.reference() is not None:
            self._move(entry, "temporaries")

    def _enter_gradient(self, parameter: nn.Parameter) -> None:
        if parameter.grad is not None:
            self._enter(parameter.grad, "gradients")

    def _enter_holders(self, *_: Any) -> None:
        """Updates the holders: gradients and optimizer state come and go."""
        for category, tensors in self._holders():
            for tensor in tensors:
                self._enter(tensor, category)

    def _holders(self) -> Iterator[tuple[str, Iterable[Tensor]]]:
        parameters = list(self.model.parameters())
        yield "parameters", parameters
        yield "buffers", self.model.buffers()
        yield "gradients", (p.grad for p in parameters if p.grad is not None)
        if self.optimizer is not None:
            leaves = tree_leaves([dict(state) for state in self.optimizer.state.values()])
            yield "optimizer", (leaf for leaf in leaves if isinstance(leaf, Tensor))

    # Entries ------------------------------------------------------------------------------------

    def _enter(self, tensor: Tensor, category: str) -> list[_Entry]:
        """Enters each storage of `tensor`; a known one can only rise in category."""
        entries = []
        for storage in _storages(tensor):
            if storage.device.type != self.device.type:
                continue
            entry = self._entries.get(storage._cdata)
            if entry is None:
                entry = self._open_entry(storage, category)
            elif CATEGORIES.index(category) < CATEGORIES.index(entry.category):
                self._move(entry, category)
            self._resize(entry, storage.nbytes())
            entries.append(entry)
        return entries

    def _open_entry(self, storage: torch.UntypedStorage, category: str) -> _Entry:
        key = storage._cdata
        reference = weakref.ref(storage, lambda _: self._close_entry(key))
        unheld_since = self._next_event() if category == "temporaries" else None
        entry = self._entries[key] = _Entry(reference, 0, category, unheld_since)
        return entry

    def _close_entry(self, key: int) -> None:
        entry = self._entries.pop(key)
        self._bytes[entry.category] -= entry.size

    def _resize(self, entry: _Entry, size: int) -> None:
        """Sets an entry's size (an unsharded parameter's storage grows and shrinks)."""
        if size != entry.size:
            self._bytes[entry.category] += size - entry.size
            entry.size = size
            self._look_for_peak(entry.category)

    def _see_shrunk(self) -> None:
        """Detects freed memory of sharded or offloaded tensors, which no operation shows."""
        for entry in list(self._entries.values()):
            storage = entry.reference()
            if storage is not None and storage.nbytes() < entry.size:
                self._bytes[entry.category] -= entry.size - storage.nbytes()
                entry.size = storage.nbytes()

    def _move(self, entry: _Entry, category: str) -> None:
        """Changes the holder of an entry; at the peak too, if it lived then and never had a holder.

        At the peak a new result may be saved, or become a gradient or Adam's state, only in the
        next operation: it is counted there under that later category.
        """
        self._bytes[entry.category] -= entry.size
        self._bytes[category] += entry.size
        if entry.unheld_since is not None and entry.unheld_since < self._peak_event:
            self._peak["temporaries"] -= entry.size
            self._peak[category] += entry.size
        entry.category, entry.unheld_since = category, None
        self._look_for_peak(category)

    def _look_for_peak(self, category: str) -> None:
        higher = self._bytes[category] > self._highest[category]
        if higher or sum(self._bytes.values()) > sum(self._peak.values()):
            self._see_shrunk()
        self._highest[category] = max(self._highest[category], self._bytes[category])
        if sum(self._bytes.values()) > sum(self._peak.values()):
            self._peak, self._peak_event = dict(self._bytes), self._next_event()

    def _next_event(self) -> int:
        self._event += 1
        return self._event


def _storages(tensor: Tensor) -> Iterator[torch.UntypedStorage]:
    """The storages under a tensor; DTensors and similar are unwrapped to their parts."""
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        for part in (getattr(tensor, name) for name in names):
            if isinstance(part, Tensor):  # and not the mesh
                yield from _storages(part)
    elif tensor.layout == torch.strided:
        yield tensor.untyped_storage()


def _unsave(saved: Tensor | _Saved) -> Tensor:
    return saved.tensor if isinstance(saved, _Saved) else saved


# The allocator's own count -----------------------------------------------------------------------


def peak_allocated_bytes(function: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """The most bytes that a call had allocated at any moment, above what existed before.

    The allocator also counts buffers inside kernels and under subclasses such as DTensor, which the
    ledger does not see. On a CPU the count comes from torch's profiler (a call takes several times
    as long), on CUDA from the allocator. Only memory that the call itself allocated may be freed.
    """
    gc.collect()
    if torch.device(device).type == "cuda":
        return _peak_on_cuda(function, device)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences its messages at start and stop
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        function()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()  # below 0 if memory is freed
        peak = max(peak, now)
    return peak


def _peak_on_cuda(function: Callable[[], object], device: torch.device | str) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    function()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
