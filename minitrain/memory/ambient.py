"""The state that a repeated function must find again: random generators and autocast.

A repetition is the same function of the same inputs only if both are as they were: each device's
generator where it stood, so that dropout drops the same elements, and autocast as it was, so that
matmuls round alike; backward itself runs outside of autocast.
Cost: 5 KB and some 10 µs a call for the CPU's generator, 16 bytes for a GPU's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from minitrain.generators import CPU, TorchStates, restore_torch, torch_states


@dataclass(frozen=True)
class Ambient:
    """As it was when `ambient_now` was called; `restored` brings it back for a while."""

    generators: TorchStates
    autocast: dict[str, tuple[bool, torch.dtype]]  # by device type: enabled, dtype
    autocast_cache: bool

    @contextmanager
    def restored(self) -> Iterator[None]:
        """The block sees what was then; afterwards all is as before the block."""
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
