"""Power swings of a job as the grid sees them: all chips compute and wait at the same times, many
times a minute.

    P    ┌──┐ ┌──┐ ┌──┐     tens of megawatts up and down with every step: generators and
         │  └─┘  └─┘  └─   transformers have limits for it between 0.1 and 20 Hz

Two remedies and their costs: chips keep computing while they wait (dummy work: no swing, more
energy), or groups of ranks work at different times (staggered: the same energy, but only if steps
need not end together). Emulated. Sources: Llama 3, arXiv 2407.21783, section 3.3.4 (tens of
megawatts); Choukse et al. 2025, arXiv 2508.14318 (limits and remedies).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minitrain.errors import InputError
from minitrain.monitoring.hardware import H100, Chip

BAND = (0.1, 20.0)  # Hz


@dataclass(frozen=True)
class JobPower:
    """Total watts of all chips, every `dt` seconds."""

    watts: np.ndarray  # (S,)
    dt: float

    @property
    def swing_watts(self) -> float:
        return float(self.watts.max() - self.watts.min())

    @property
    def mean_watts(self) -> float:
        return float(self.watts.mean())

    def spectrum(self) -> tuple[np.ndarray, np.ndarray]:
        """Frequencies in Hz and amplitudes in watts, (S/2,) both; without the mean."""
        amplitudes = np.abs(np.fft.rfft(self.watts)) * 2 / len(self.watts)
        return np.fft.rfftfreq(len(self.watts), self.dt)[1:], amplitudes[1:]

    def strongest(self, band: tuple[float, float] = BAND) -> tuple[float, float]:
        """(Hz, watts) of the largest amplitude in the band."""
        frequencies, amplitudes = self.spectrum()
        inside = (frequencies >= band[0]) & (frequencies <= band[1])
        if not inside.any():
            raise InputError(f"no frequency lies in {band} Hz: give more seconds, or a smaller dt")
        place = int(np.argmax(np.where(inside, amplitudes, -1.0)))
        return float(frequencies[place]), float(amplitudes[place])


def job_power(
    chips: int,
    compute_seconds: float,
    wait_seconds: float,
    seconds: float = 60.0,
    dt: float = 0.01,
    chip: Chip = H100,
    dummy: float = 0.0,
    groups: int = 1,
) -> JobPower:
    """A job whose ranks compute, then wait for each other, step after step.

    dummy: share of full work that a chip does while it waits. groups: number of groups, whose steps
    start evenly spaced over one step.
    """
    if not 0 <= dummy <= 1 or groups < 1 or min(compute_seconds, wait_seconds, dt) <= 0:
        raise InputError(
            f"dummy={dummy}, groups={groups}, {compute_seconds} s of compute, {wait_seconds} s of "
            f"waiting, dt={dt}: give a share, 1 group or more, and times over 0"
        )
    step = compute_seconds + wait_seconds
    times = np.arange(0, seconds, dt) + dt / 2  # (S,): the middle of each interval
    place = (times[:, None] - np.arange(groups) * step / groups) % step  # (S, groups)
    busy = np.where(place < compute_seconds, 1.0, dummy)
    watts = chip.idle_watts + (chip.max_watts - chip.idle_watts) * busy
    return JobPower(watts.mean(axis=1) * chips, dt)
