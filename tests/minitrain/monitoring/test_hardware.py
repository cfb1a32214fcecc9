"""The emulated chip against its own differential equation, the grid's view of it against Fourier's,
and the calls to NVML against a driver of our own: the machine that runs the tests has no GPU."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from minitrain.errors import InputError
from minitrain.monitoring.hardware import (
    H100,
    EmulatedSensor,
    Heat,
    NvmlSensor,
    bus_of,
    find_sensor,
)
from minitrain.monitoring.power_swing import JobPower, job_power


def test_heat_is_the_solution_of_its_equation():
    """Against small steps of Euler's; below the limit, where the clock stays."""
    random = np.random.default_rng(0)
    heat, celsius = Heat(inlet=25.0, celsius=31.0), 31.0
    for _ in range(20):
        share, seconds = float(random.random()), float(random.uniform(1, 20))
        watts = heat.advance(share, seconds)
        assert watts == pytest.approx(70 + 630 * share)
        for _ in range(4_000):
            flow = watts - (celsius - 25.0) / H100.resistance
            celsius += flow / H100.capacity * seconds / 4_000
    assert heat.celsius == pytest.approx(celsius, abs=3e-2)


def test_it_settles_where_the_data_sheet_and_the_assumptions_say():
    settled, whole, cut = Heat(), Heat(), Heat()
    settled.advance(1.0, 1e6)
    assert settled.celsius == pytest.approx(75.0), "700 W in air of 30 °C"
    whole.advance(1.0, H100.resistance * H100.capacity)
    assert whole.celsius == pytest.approx(30 + 45 * (1 - math.exp(-1)))
    for _ in range(40):
        cut.advance(1.0, H100.resistance * H100.capacity / 40)
    assert cut.celsius == pytest.approx(whole.celsius, rel=1e-12), "in one piece or in forty"
    assert H100.resistance * H100.capacity == pytest.approx(30.0, rel=0.01)


def test_a_failing_fan_throttles_and_the_clock_holds_the_temperature():
    heat = Heat(cooling_fault=1.6)
    for _ in range(2000):
        watts = heat.advance(1.0, 0.5)
    carried = (H100.throttle_celsius - 30) / (H100.resistance * 1.6)
    assert heat.celsius == pytest.approx(H100.throttle_celsius, abs=0.2)
    assert watts == pytest.approx(carried, rel=0.02) and watts < 700
    assert heat.clock == pytest.approx((carried - 70) / 630, rel=0.03)
    cool = Heat(cooling_fault=1.6)
    for _ in range(2000):
        cool.advance(0.5, 0.5)
    assert cool.clock == 1.0 and cool.celsius < 80, "half the work needs no throttling"


def test_the_swing_of_a_job_is_a_square_wave():
    """Its first harmonic: 2 ΔP / π · sin(π d), at one over the step."""
    for compute, wait in ((0.6, 0.4), (1.5, 0.5), (0.05, 0.15)):
        job = job_power(1000, compute, wait, seconds=200 * (compute + wait), dt=1e-3)
        hertz, watts = job.strongest()
        assert hertz == pytest.approx(1 / (compute + wait), rel=1e-6)
        share = compute / (compute + wait)
        assert watts == pytest.approx(2 * 630e3 / math.pi * math.sin(math.pi * share), rel=1e-2)
        assert job.swing_watts == pytest.approx(630e3)
        assert job.mean_watts == pytest.approx(70e3 + 630e3 * share, rel=1e-2)
        _frequencies, amplitudes = job.spectrum()
        assert np.sum(amplitudes**2) / 2 == pytest.approx(job.watts.var(), rel=1e-6)  # Parseval


def test_what_the_cures_cost():
    plain = job_power(1000, 0.8, 0.2)
    dummy = job_power(1000, 0.8, 0.2, dummy=1.0)
    spread = job_power(1000, 0.8, 0.2, groups=5)
    assert dummy.swing_watts == 0 and dummy.mean_watts == 700e3 > plain.mean_watts
    assert spread.swing_watts < 1e-6, "five groups of which one always waits"
    assert spread.mean_watts == pytest.approx(plain.mean_watts, rel=2e-3)
    half = job_power(1000, 0.8, 0.2, dummy=0.5)
    assert half.swing_watts == pytest.approx(plain.swing_watts / 2)
    with pytest.raises(InputError, match="1 group or more"):
        job_power(10, 1, 1, groups=0)
    with pytest.raises(InputError, match="no frequency lies in"):
        JobPower(np.ones(10), 0.01).strongest((0.1, 0.2))


# --- NVML ---


PROPERTIES = SimpleNamespace(name="H100", pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0)


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
    sensor = NvmlSensor(PROPERTIES)
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
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: PROPERTIES)
    assert isinstance(find_sensor(torch.device("cuda")), EmulatedSensor)
    said = capsys.readouterr().out
    assert "pip install nvidia-ml-py; power and temperature are emulated" in said
