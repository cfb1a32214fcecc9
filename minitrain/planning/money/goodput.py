"""Goodput: the share of time that trains despite failures, by Young's formula, and its cost.

M is a chip's own mean time between failures over the number of chips; the formulas are
failures/intervals.py, the law and Llama 3's 50,677 chip-hours failures/law.py, and what the
formulas leave out failures/replay.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from minitrain.errors import InputError
from minitrain.planning.failures.intervals import lost_share, young_interval
from minitrain.planning.failures.law import LLAMA3_CHIPS, LLAMA3_DAYS

LLAMA3_CHIP_HOURS = LLAMA3_DAYS * 24 * LLAMA3_CHIPS / 419


@dataclass(frozen=True)
class Failures:
    """`chip_hours` between two failures of one chip; seconds of a save that stop training; of a
    restart, from the failure to the first new step."""

    chip_hours: float = LLAMA3_CHIP_HOURS
    save_seconds: float = 15.0
    restart_seconds: float = 300.0

    def __post_init__(self) -> None:
        if self.chip_hours <= 0 or self.save_seconds < 0 or self.restart_seconds < 0:
            raise InputError(
                f"failures every {self.chip_hours} chip-hours, saves of {self.save_seconds} s, "
                f"restarts of {self.restart_seconds} s: give hours over 0 and seconds of 0 or more"
            )

    def between(self, chips: int) -> float:
        """M: seconds between failures of `chips` chips together."""
        return self.chip_hours * 3600 / chips


def best_interval(failures: Failures, chips: int) -> float:
    """Seconds between saves, by Young's formula."""
    return young_interval(failures.save_seconds, failures.between(chips))


def goodput(failures: Failures, chips: int, interval: float | None = None) -> float:
    """The share of the time that trains, at the best interval unless another is given."""
    between = failures.between(chips)
    interval = interval or best_interval(failures, chips)
    lost = lost_share(failures.save_seconds, failures.restart_seconds, between, interval)
    if lost >= 1:
        raise InputError(
            f"{chips} chips fail every {between / 60:.0f} minutes, and saves and restarts take "
            "longer: nothing would be trained; save faster, restart faster, or use fewer chips"
        )
    return 1 - lost
