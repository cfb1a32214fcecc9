"""Chooses the sensor: NVML for an NVIDIA GPU, else an emulated H100, which says so."""

from __future__ import annotations

from typing import Protocol

import torch

from minitrain.errors import InputError
from minitrain.monitoring.hardware.heat import EmulatedSensor
from minitrain.monitoring.hardware.nvml import NvmlSensor
from minitrain.training.report import Sample


class Sensor(Protocol):
    def read(self, utilisation: float, seconds: float) -> Sample:
        """Reads the chip. An emulated one goes by the share of the last `seconds` in which it
        computed."""


def find_sensor(device: torch.device) -> Sensor:
    """NVML's, where the device is CUDA's and nvidia-ml-py is there; else the model's."""
    if device.type == "cuda":
        try:
            return NvmlSensor(torch.cuda.get_device_properties(device))
        except InputError as error:
            print(f"{error}; power and temperature are emulated")
    return EmulatedSensor()
