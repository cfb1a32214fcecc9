"""A chip's power and temperature, emulated: what an H100 that is as busy as this rank would say.

    P = P_idle + (P_max - P_idle) · u · clock        power, of the share u of the time it computes
    C dT/dt = P - (T - T_in) / R                     heat: exact for a P that stays for a while
    T > T_throttle:  clock = P_allowed / P_wanted    the clock that holds T there

A rank whose air is warm, or whose fan fails (a larger R), throttles, computes slowly and makes all
others wait: one throttled H100 of 16 is a straggler for the whole job. P_max is NVIDIA's data sheet
(H100 SXM, 700 W); idle power, R and C are assumptions: 75 °C at full power in air of 30 °C, 63% of
the way in 30 s. Everything from here is marked `gpu_is_emulated`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from minitrain.errors import InputError
from minitrain.training.report import Sample


@dataclass(frozen=True)
class Chip:
    name: str
    idle_watts: float
    max_watts: float
    resistance: float  # K/W, of the chip to the air
    capacity: float  # J/K
    throttle_celsius: float = 87.0
    lowest_clock: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.idle_watts < self.max_watts or min(self.resistance, self.capacity) <= 0:
            raise InputError(
                f"{self.name}: idle {self.idle_watts} W, at most {self.max_watts} W, "
                f"{self.resistance} K/W, {self.capacity} J/K: give idle under most, and over 0"
            )

    def watts(self, utilisation: float, clock: float = 1.0) -> float:
        return self.idle_watts + (self.max_watts - self.idle_watts) * utilisation * clock


H100 = Chip("H100 SXM", idle_watts=70.0, max_watts=700.0, resistance=45 / 700, capacity=467.0)


@dataclass
class Heat:
    """One chip over time. `resistance` is the chip's times `cooling_fault`: 2 is a fan that fails.

    `inlet`: °C of its air.
    """

    chip: Chip = H100
    inlet: float = 30.0
    cooling_fault: float = 1.0
    celsius: float = 30.0
    joules: float = 0.0  # spent so far
    clock: float = 1.0  # share of the highest; of the time since the last `advance`

    @property
    def resistance(self) -> float:
        return self.chip.resistance * self.cooling_fault

    def advance(self, utilisation: float, seconds: float) -> float:
        """`seconds` in which it computes that share of the time -> its power in watts."""
        self.clock = self._clock(utilisation)
        watts = self.chip.watts(utilisation, self.clock)
        settled = self.inlet + self.resistance * watts
        keep = math.exp(-seconds / (self.resistance * self.chip.capacity))
        self.celsius = settled + (self.celsius - settled) * keep
        self.joules += watts * seconds
        return watts

    def _clock(self, utilisation: float) -> float:
        """At the limit, as fast as the air can carry the heat away; below it, full speed."""
        chip = self.chip
        wanted = chip.watts(utilisation) - chip.idle_watts
        if self.celsius < chip.throttle_celsius or wanted <= 0:
            return 1.0
        carried = (chip.throttle_celsius - self.inlet) / self.resistance
        return min(1.0, max(chip.lowest_clock, (carried - chip.idle_watts) / wanted))


class EmulatedSensor:
    """A rank's own H100, as busy as the rank is."""

    def __init__(self, heat: Heat | None = None) -> None:
        self.heat = heat or Heat()

    def read(self, utilisation: float, seconds: float) -> Sample:
        watts = self.heat.advance(utilisation, seconds)
        return {
            "gpu_is_emulated": 1,
            "gpu_utilisation": round(utilisation, 4),
            "gpu_power_watts": round(watts, 2),
            "gpu_temperature_celsius": round(self.heat.celsius, 3),
            "gpu_clock_share": round(self.heat.clock, 4),
            "gpu_xid": 0,
        }
