"""NVIDIA's driver (NVML) about a GPU: utilisation, power, temperature, clock, Xid errors.

By nvidia-ml-py, an optional package: `pip install nvidia-ml-py`. Each call takes some 10 to 1000 µs
of the driver; once a second they do not count.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from minitrain.errors import InputError
from minitrain.optional import optional
from minitrain.training.report import Sample


class NvmlSensor:
    """The sensor of the GPU that torch describes by these properties; found by its bus, since NVML
    counts all GPUs of the machine and CUDA_VISIBLE_DEVICES may hide some from torch."""

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
        with suppress(nvml.NVMLError):  # not in every container
            self.errors = nvml.nvmlEventSetCreate()
            kind = nvml.nvmlEventTypeXidCriticalError
            nvml.nvmlDeviceRegisterEvents(self.handle, kind, self.errors)

    def read(self, utilisation: float, seconds: float) -> Sample:
        """Reads the chip; values that the driver does not give are left out."""
        nvml, handle = self.nvml, self.handle
        asked = {
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
        for name, ask in asked.items():
            with suppress(nvml.NVMLError):
                found[name] = ask()
        return found

    def _xid(self) -> int:
        """The last one since the run began; the events of this moment do not wait."""
        if self.errors is not None:
            with suppress(self.nvml.NVMLError):  # time is out: no event
                while True:
                    self.xid = int(self.nvml.nvmlEventSetWait_v2(self.errors, 0).eventData)
        return self.xid


def bus_of(properties: Any) -> str:
    """ "00000000:1B:00.0"."""
    return (
        f"{properties.pci_domain_id:08X}:{properties.pci_bus_id:02X}:"
        f"{properties.pci_device_id:02X}.0"
    )
