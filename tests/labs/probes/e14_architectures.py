"""The probes of lab e14: what runs in the sandbox, beside a submission. Nothing here knows what is
expected."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from minitrain.measure.flops import counted_flops

from .in_turn import in_turn


class Operations(TorchDispatchMode):
    """Counts operations that compute, and the largest result."""

    def __init__(self):
        super().__init__()
        self.count = self.largest = 0
        self.names = set()

    def __torch_dispatch__(self, op, types, arguments=(), options=None):
        out = op(*arguments, **(options or {}))
        first = out[0] if isinstance(out, (tuple, list)) else out
        if isinstance(first, Tensor) and not op.is_view:
            self.count += 1
            self.names.add(op.overloadpacket.__name__)
            self.largest = max(self.largest, first.numel())
        return out


def metered(f, calls):
    """For each call: FLOPs of its matmuls, operations, numbers in the largest result."""
    found = []
    for arguments in calls:
        flops = counted_flops(lambda arguments=arguments: f(*arguments))
        with Operations() as seen:
            f(*arguments)
        row = {"flops": flops, "operations": seen.count, "largest": seen.largest}
        found.append({**row, "names": sorted(seen.names)})
    return found


def gradients(f, arguments):
    """The gradient of every tensor among the arguments, of a weighted sum of what came."""
    arguments = [a.clone().requires_grad_() if isinstance(a, Tensor) else a for a in arguments]
    out, state = f(*arguments)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    ((out * weights).sum() + state.square().sum()).backward()
    return [a.grad for a in arguments if isinstance(a, Tensor)]


def written(f, sizes, writings):
    """The state after each list of (key, value), from zeros, by a new Memory for every write; and
    whether the states that were given stayed as they were."""
    states = []
    for pairs in writings:
        state, kept = torch.zeros(sizes[-1]), True
        for key, value in pairs:
            given = state.clone()
            after = f(*sizes).write(state, key, value)
            kept, state = kept and torch.equal(given, state), after
        states.append((state, kept))
    return states


def readings(f, sizes, states, asked):
    """What each state answers to its keys."""
    return [
        torch.stack([f(*sizes).read(state, key) for key in keys])
        for state, keys in zip(states, asked)
    ]


__all__ = ["gradients", "in_turn", "metered", "readings", "written"]
