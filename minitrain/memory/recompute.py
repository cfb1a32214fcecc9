"""Activation checkpointing: drop what a function saved for backward, and recompute it then.

    forward    f1 → x1    f2 → x2    f3 → x3           only x0, x1, x2 are kept
    backward                                f3 again, df3    f2 again, df2    f1 again, df1

Cost: a segment holds its input, B·T·D numbers, instead of everything inside, and both during its
own backward; one more forward, a third of a step's FLOPs. `checkpoint` stops recomputing at the
last tensor that backward needs: a block's last matmul is skipped.
Recomputation gives the same results only if torch's generators and autocast are restored
(`Ambient`): dropout drops the same elements, and matmuls round alike, though backward runs outside
of autocast. That costs 5 KB and some 10 µs a call for the CPU's generator.
Papers: Chen et al. 2016, arXiv 1604.06174; Korthikanti et al. 2022, 2205.05198. Lab: e05.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from minitrain.errors import InputError
from minitrain.generators import CPU, TorchStates, restore_torch, torch_states
from minitrain.memory.selective import Policy, Recorder, Replayer


def checkpoint_naive(function: Callable[..., Any], *inputs: Tensor) -> Any:
    """`function(*inputs)` with recomputation: a node whose backward runs a graph of its own.

    Its limits are why `checkpoint` exists. Inputs must be positional tensors, not in tuples; if
    none requires a gradient the parameters get none either; each recomputation is a separate
    backward, so hooks of a parameter used in two of them run twice (DDP sends twice).
    """
    return _Reentrant.apply(function, *inputs)


class _Reentrant(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *inputs):  # autograd records nothing in here
        ctx.function, ctx.ambient = function, ambient_now(inputs)
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    def backward(ctx, *gradients):
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        with ctx.ambient.restored(), torch.enable_grad():
            out = ctx.function(*inputs)
        torch.autograd.backward(out, gradients)
        return None, *(x.grad for x in inputs)


@dataclass(frozen=True)
class Checkpoint:
    """Activation checkpointing: `Checkpoint(policy)(function, *inputs, **named_inputs)`.

    Autograd's graph is the original one; only its saved tensors are replaced by placeholders. The
    first access in backward recomputes the function and finds them all. So inputs and outputs
    may be anything, hooks of parameters run once, and checkpoints nest.

    `policy`: which operations' results to keep (`selective`); None keeps nothing.
    `stop_early`: stop recomputing at the last tensor that is needed.
    """

    policy: Policy | None = None
    stop_early: bool = True

    def __call__(self, function: Callable[..., Any], *inputs: Any, **named_inputs: Any) -> Any:
        if not torch.is_grad_enabled():
            return function(*inputs, **named_inputs)
        call = _Call(self, function, (inputs, named_inputs))
        with saved_tensors_hooks(call.drop, _restore), call.recorder or nullcontext():
            out = function(*inputs, **named_inputs)
        call.close()
        return out


def checkpoint(function: Callable[..., Any], *inputs: Any, **named_inputs: Any) -> Any:
    """`function(*inputs, **named_inputs)`, keeping only the inputs.

    It runs twice: what it changes besides, such as BatchNorm's running means, changes twice too.
    """
    return Checkpoint()(function, *inputs, **named_inputs)


class _Call:
    """One call of a checkpointed function: inputs for its recomputation, and the tensors found."""

    def __init__(self, how: Checkpoint, function: Callable[..., Any], inputs: Any) -> None:
        self.how, self.function = how, function
        self.ambient: Ambient = ambient_now(x for x in tree_leaves(inputs) if isinstance(x, Tensor))
        self.inputs = _Kept(inputs)
        self.recorder = Recorder(how.policy) if how.policy else None
        self.results: _Kept | None = None  # of the operations that the policy chose
        self.dropped: list[tuple[torch.Size, torch.dtype]] = []  # in the order of saving
        self.found: dict[int, Tensor] = {}  # recomputed, not yet used

    def drop(self, tensor: Tensor) -> _Dropped:
        """Autograd's pack hook, in forward: puts a note into the graph in the tensor's place."""
        self.dropped.append((tensor.shape, tensor.dtype))
        if self.recorder and self.how.stop_early:
            self.recorder.mark()  # later results are not needed, unless more is saved
        return _Dropped(self, len(self.dropped) - 1)

    def close(self) -> None:
        if self.recorder:
            self.results = _Kept(self.recorder.results(marked=self.how.stop_early))
            self.recorder = None

    def restore(self, index: int) -> Tensor:
        """Autograd's unpack hook, in backward. A tensor is held until it is taken."""
        if index not in self.found:
            self.repeat()
        return self.found.pop(index)

    def repeat(self) -> None:
        inputs, named_inputs = self.inputs.get()
        replayer = Replayer(self.how.policy, self.results.get()) if self.results else nullcontext()
        finder = _Finder(self.dropped, self.how.stop_early)
        with self.ambient.restored(), torch.enable_grad():
            try:
                with saved_tensors_hooks(finder.find, finder.found.__getitem__), replayer:
                    self.function(*inputs, **named_inputs)
            except _EnoughError:
                pass
        finder.check_complete()
        self.found = finder.found


@dataclass(frozen=True)
class _Dropped:
    """A stand-in for a saved tensor in the graph; once all are collected, the call is
    over."""

    call: _Call
    index: int


def _restore(note: _Dropped) -> Tensor:
    return note.call.restore(note.index)


class _EnoughError(Exception):
    """The last tensor was found: unwinds the recomputation."""


class _Finder:
    """Collects recomputed tensors in the order of saving, and checks them against the first run."""

    def __init__(self, wanted: list[tuple[torch.Size, torch.dtype]], stop_early: bool) -> None:
        self.wanted, self.stop_early = wanted, stop_early
        self.found: dict[int, Tensor] = {}

    def find(self, tensor: Tensor) -> int:
        index, got = len(self.found), (tensor.shape, tensor.dtype)
        if index >= len(self.wanted) or got != self.wanted[index]:
            raise _unlike(f"saved {_described(*got)} as number {index + 1}", self.wanted, index)
        self.found[index] = tensor.detach()
        if self.stop_early and len(self.found) == len(self.wanted):
            raise _EnoughError
        return index

    def check_complete(self) -> None:
        if len(self.found) < len(self.wanted):
            raise _unlike("saved no more", self.wanted, len(self.found))


def _unlike(did: str, wanted: list[tuple[torch.Size, torch.dtype]], index: int) -> InputError:
    first = f"saved {_described(*wanted[index])}" if index < len(wanted) else "was at its end"
    return InputError(
        f"a checkpointed function did something else when it was repeated: it {did}, where it "
        f"{first} the first time; it must depend on its inputs, its parameters and torch's "
        "generators alone: keep what else it reads out of it, or among its inputs"
    )


def _described(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {tuple(shape)}"


class _Kept:
    """A tree of values whose tensors are saved for backward, as an operation saves its own.

    So the ledger, offload and an enclosing checkpoint see these too, and in-place changes are
    detected.
    """

    def __init__(self, tree: Any) -> None:
        leaves, self.spec = tree_flatten(tree)
        self.leaves = [_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        anchor = torch.empty(0, requires_grad=True)  # without it nothing would be saved
        self.node = _Keep.apply(anchor, *(x for x in leaves if isinstance(x, Tensor))).grad_fn

    def get(self) -> Any:
        tensors = iter(self.node.saved_tensors)
        leaves = [next(tensors) if leaf is _TENSOR else leaf for leaf in self.leaves]
        return tree_unflatten(leaves, self.spec)


_TENSOR = object()  # placeholder for a tensor


class _Keep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, anchor, *tensors):
        ctx.save_for_backward(*tensors)
        return anchor.new_empty(0)

    @staticmethod
    def backward(ctx, gradient):
        raise AssertionError("nothing is computed from it, so no gradient comes")


# ---- state to restore for recomputation: random generators and autocast ----


@dataclass(frozen=True)
class Ambient:
    """The state when `ambient_now` was called; `restored` brings it back temporarily."""

    generators: TorchStates
    autocast: dict[str, tuple[bool, torch.dtype]]  # by device type: enabled, dtype
    autocast_cache: bool

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restores that state inside the block, and the current state after it."""
        before = torch_states(self.generators)
        with ExitStack() as stack:
            stack.callback(restore_torch, before)
            restore_torch(self.generators)
            for device_type, (enabled, dtype) in self.autocast.items():
                stack.enter_context(
                    torch.autocast(device_type, dtype, enabled, self.autocast_cache)
                )
            yield


def ambient_now(tensors: Iterable[Tensor]) -> Ambient:
    """The ambient state of a call with these inputs, on the CPU and on their own devices."""
    devices = {CPU, *(tensor.device for tensor in tensors if not tensor.is_meta)}
    autocast = {
        kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        for kind in sorted({device.type for device in devices})
        if torch.amp.is_autocast_available(kind)
    }
    return Ambient(torch_states(devices), autocast, torch.is_autocast_cache_enabled())
