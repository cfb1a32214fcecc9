"""A chip's power, temperature and clock: from NVIDIA's NVML, or of an emulated H100.

    P = P_idle + (P_max - P_idle) · u · clock        power; u: fraction of time spent computing
    C dT/dt = P - (T - T_in) / R                     heat: exact while P is constant
    T > T_throttle:  clock = P_allowed / P_wanted    the clock that holds T there

A rank with warm inlet air, or a failing fan (a larger R), throttles, computes slowly and makes all
others wait: one throttled H100 of 16 is a straggler for the whole job. P_max is from NVIDIA's data
sheet (H100 SXM, 700 W); idle power, R and C are assumptions: 75 °C at full power in air of 30 °C,
63% of the rise in 30 s. An emulated chip's samples are marked `gpu_is_emulated`.

NVML is read through nvidia-ml-py, an optional package: a call takes 10 to 1000 µs in the driver,
negligible once a second.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from minitrain.errors import InputError
from minitrain.optional import optional
from minitrain.training.report import Sample


@dataclass(frozen=True)
class Chip:
    idle_watts: float
    max_watts: float
    resistance: float  # K/W, of the chip to the air
    capacity: float  # J/K
    throttle_celsius: float = 87.0
    lowest_clock: float = 0.2

    def watts(self, utilisation: float, clock: float = 1.0) -> float:
        return self.idle_watts + (self.max_watts - self.idle_watts) * utilisation * clock


H100 = Chip(idle_watts=70.0, max_watts=700.0, resistance=45 / 700, capacity=467.0)


@dataclass
class Heat:
    """One chip over time. `resistance` is the chip's times `cooling_fault`: 2 models a failing fan.

    `inlet`: air temperature in °C.
    """

    chip: Chip = H100
    inlet: float = 30.0
    cooling_fault: float = 1.0
    celsius: float = 30.0
    clock: float = 1.0  # fraction of the maximum, over the time since the last `advance`

    @property
    def resistance(self) -> float:
        return self.chip.resistance * self.cooling_fault

    def advance(self, utilisation: float, seconds: float) -> float:
        """Advances `seconds` with `utilisation` of the time computing -> power in watts."""
        self.clock = self._clock(utilisation)
        watts = self.chip.watts(utilisation, self.clock)
        settled = self.inlet + self.resistance * watts
        keep = math.exp(-seconds / (self.resistance * self.chip.capacity))
        self.celsius = settled + (self.celsius - settled) * keep
        return watts

    def _clock(self, utilisation: float) -> float:
        """At the limit, as fast as cooling allows; below it, full speed."""
        chip = self.chip
        wanted = chip.watts(utilisation) - chip.idle_watts
        if self.celsius < chip.throttle_celsius or wanted <= 0:
            return 1.0
        carried = (chip.throttle_celsius - self.inlet) / self.resistance
        return min(1.0, max(chip.lowest_clock, (carried - chip.idle_watts) / wanted))


class EmulatedSensor:
    """A rank's own H100, with the rank's utilisation."""

    def __init__(self) -> None:
        self.heat = Heat()

    def read(self, utilisation: float, seconds: float) -> Sample:
        """The chip after `seconds` at this utilisation."""
        watts = self.heat.advance(utilisation, seconds)
        return {
            "gpu_is_emulated": 1,
            "gpu_utilisation": round(utilisation, 4),
            "gpu_power_watts": round(watts, 2),
            "gpu_temperature_celsius": round(self.heat.celsius, 3),
            "gpu_clock_share": round(self.heat.clock, 4),
            "gpu_xid": 0,
        }


class NvmlSensor:
    """The sensor of the GPU with these torch properties; found by its bus id, since NVML counts all
    GPUs of the machine and CUDA_VISIBLE_DEVICES may hide some from torch."""

    def __init__(self, properties: Any) -> None:
        self.nvml = nvml = optional("reading the GPU's power", "pynvml", "nvidia-ml-py")
        try:
            nvml.nvmlInit()
            self.handle = nvml.nvmlDeviceGetHandleByPciBusId(bus_of(properties))
            self.highest = nvml.nvmlDeviceGetMaxClockInfo(self.handle, nvml.NVML_CLOCK_SM)
        except nvml.NVMLError as error:
            raise InputError(f"NVML does not answer for {properties.name}: {error}") from None
        self.xid = 0
        self.errors = None
        with suppress(nvml.NVMLError):  # not available in every container
            self.errors = nvml.nvmlEventSetCreate()
            kind = nvml.nvmlEventTypeXidCriticalError
            nvml.nvmlDeviceRegisterEvents(self.handle, kind, self.errors)

    def read(self, utilisation: float, seconds: float) -> Sample:
        """The chip as it is now, without values that the driver does not provide."""
        nvml, handle = self.nvml, self.handle
        values = {
            "gpu_utilisation": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            "gpu_power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "gpu_temperature_celsius": lambda: nvml.nvmlDeviceGetTemperature(
                handle, nvml.NVML_TEMPERATURE_GPU
            ),
            "gpu_clock_share": lambda: (
                nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) / self.highest
            ),
            "gpu_xid": self._xid,
        }
        found: Sample = {"gpu_is_emulated": 0}
        for name, read in values.items():
            with suppress(nvml.NVMLError):
                found[name] = read()
        return found

    def _xid(self) -> int:
        """The last error since the run began; does not wait for one."""
        if self.errors is not None:
            with suppress(self.nvml.NVMLError):  # a timeout: no further event
                while True:
                    self.xid = int(self.nvml.nvmlEventSetWait_v2(self.errors, 0).eventData)
        return self.xid


def bus_of(properties: Any) -> str:
    """ "00000000:1B:00.0"."""
    return (
        f"{properties.pci_domain_id:08X}:{properties.pci_bus_id:02X}:"
        f"{properties.pci_device_id:02X}.0"
    )


Sensor = NvmlSensor | EmulatedSensor


def find_sensor(device: torch.device) -> Sensor:
    """NVML's, if the device is CUDA and nvidia-ml-py is installed; else the emulated one."""
    if device.type == "cuda":
        try:
            return NvmlSensor(torch.cuda.get_device_properties(device))
        except InputError as error:
            print(f"{error}; power and temperature are emulated")
    return EmulatedSensor()
