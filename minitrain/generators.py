"""A process's random number generators: Python's, NumPy's, and torch's on each device.

    seed_generators(7)             all of them, from one number
    states = generator_states()    the current state of each
    restore_generators(states)     back to it: the same numbers are drawn again

Cost: 5 KB of state for torch's on the CPU, 16 bytes for a GPU's, 2.5 KB for NumPy's and Python's.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

TorchStates = dict[torch.device, Tensor]  # per device, as bytes
CPU = torch.device("cpu")
NUMPY_SEEDS = 2**32  # NumPy's seeds are below this


@dataclass(frozen=True)
class GeneratorStates:
    torch: TorchStates
    numpy: tuple[Any, ...]  # ("MT19937", 624 words, position, has a cached normal, that normal)
    python: tuple[Any, ...]  # (version, 624 words and the position, a cached normal or None)


def seed_generators(number: int) -> None:
    """Seeds every generator, so that the same command draws the same numbers."""
    random.seed(number)
    np.random.seed(number % NUMPY_SEEDS)
    torch.manual_seed(number)


def generator_states() -> GeneratorStates:
    """States of all generators; torch's on the CPU and on this process's current GPU, if any."""
    devices = [CPU, *([torch.device("cuda")] if torch.cuda.is_available() else [])]
    return GeneratorStates(torch_states(devices), np.random.get_state(), random.getstate())


def restore_generators(states: GeneratorStates) -> None:
    """Restores states from `generator_states`; devices absent here are skipped."""
    here = {d: s for d, s in states.torch.items() if d == CPU or torch.cuda.is_available()}
    restore_torch(here)
    np.random.set_state(states.numpy)
    random.setstate(states.python)


def torch_states(devices: Iterable[torch.device]) -> TorchStates:
    return {
        device: torch.get_rng_state()
        if device == CPU
        else torch.get_device_module(device).get_rng_state(device)
        for device in devices
    }


def restore_torch(states: TorchStates) -> None:
    for device, state in states.items():
        if device == CPU:
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)
