"""A process's random number generators: Python's, NumPy's, and torch's on each device.

    seed_generators(7)             all of them, from one number
    states = generator_states()    where each stands now
    restore_generators(states)     back there: the same numbers come again

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

TorchStates = dict[torch.device, Tensor]  # each device's, as bytes
CPU = torch.device("cpu")
NUMPY_SEEDS = 2**32  # NumPy takes no larger one


@dataclass(frozen=True)
class GeneratorStates:
    torch: TorchStates
    numpy: tuple[Any, ...]  # ("MT19937", 624 words, place, whether a normal is kept, that normal)
    python: tuple[Any, ...]  # (version, 624 words and the place, a kept normal or None)


def seed_generators(number: int) -> None:
    """One seed for every source of chance, so that the same command draws the same numbers."""
    random.seed(number)
    np.random.seed(number % NUMPY_SEEDS)
    torch.manual_seed(number)


def generator_states() -> GeneratorStates:
    """Of all generators, torch's on the CPU and on this process's current GPU, if it has one."""
    devices = [CPU, *([torch.device("cuda")] if torch.cuda.is_available() else [])]
    return GeneratorStates(torch_states(devices), np.random.get_state(), random.getstate())


def restore_generators(states: GeneratorStates) -> None:
    """Puts back what `generator_states` gave; a device that is not here is left out."""
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
