"""The calls to NVML against a driver of our own: the machine that runs the tests has no GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from minitrain.errors import InputError
from minitrain.monitoring.hardware.heat import EmulatedSensor
from minitrain.monitoring.hardware.nvml import NvmlSensor, bus_of
from minitrain.monitoring.hardware.sensor import find_sensor

H100 = SimpleNamespace(name="H100", pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0)


class NVMLError(Exception):
    pass


class Driver(SimpleNamespace):
    """What nvidia-ml-py has of it, with its names."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU, nvmlEventTypeXidCriticalError = 1, 0, 8
    xids: tuple = ()
    power = 650_000  # mW

    def nvmlInit(self):
        pass

    def nvmlDeviceGetHandleByPciBusId(self, bus):
        if bus != "00000000:1B:00.0":
            raise NVMLError(f"no device at {bus}")
        return "handle"

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):
        return 1980

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return 990

    def nvmlDeviceGetUtilizationRates(self, handle):
        return SimpleNamespace(gpu=97, memory=40)

    def nvmlDeviceGetPowerUsage(self, handle):
        if self.power is None:
            raise NVMLError("Not Supported")
        return self.power

    def nvmlDeviceGetTemperature(self, handle, kind):
        return 66

    def nvmlEventSetCreate(self):
        return "events"

    def nvmlDeviceRegisterEvents(self, handle, kind, events):
        assert (handle, kind, events) == ("handle", 8, "events")

    def nvmlEventSetWait_v2(self, events, milliseconds):
        assert milliseconds == 0, "a step must not wait for an error"
        if not self.xids:
            raise NVMLError("Timeout")
        found, self.xids = SimpleNamespace(eventData=self.xids[0]), self.xids[1:]
        return found


@pytest.fixture
def driver(monkeypatch):
    one = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", one)
    return one


def test_what_the_driver_says_with_its_units(driver):
    sensor = NvmlSensor(H100)
    assert sensor.read(0.0, 1.0) == {
        "gpu_is_emulated": 0,
        "gpu_utilisation": 0.97,
        "gpu_power_watts": 650.0,
        "gpu_temperature_celsius": 66,
        "gpu_clock_share": 0.5,
        "gpu_xid": 0,
    }
    driver.xids, driver.power = (13, 79), None
    found = sensor.read(0.0, 1.0)
    assert found["gpu_xid"] == 79 and "gpu_power_watts" not in found
    assert sensor.read(0.0, 1.0)["gpu_xid"] == 79, "the last one stays"


def test_a_gpu_that_nvml_does_not_know_is_a_sentence(driver):
    other = SimpleNamespace(name="other", pci_domain_id=1, pci_bus_id=0xFF, pci_device_id=3)
    assert bus_of(other) == "00000001:FF:03.0"
    with pytest.raises(InputError, match="NVML does not answer for other"):
        NvmlSensor(other)


def test_where_there_is_none_the_model_says_that_it_is_one(monkeypatch, capsys):
    assert isinstance(find_sensor(torch.device("cpu")), EmulatedSensor)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: H100)
    assert isinstance(find_sensor(torch.device("cuda")), EmulatedSensor)
    said = capsys.readouterr().out
    assert "pip install nvidia-ml-py; power and temperature are emulated" in said
