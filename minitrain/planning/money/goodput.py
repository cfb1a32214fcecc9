"""What failures take: how often to save, and what share of the time then trains.

With saves of δ seconds every τ, failures every M (of the whole cluster) and R to come back:

    lost share = δ/τ + τ/(2 M) + R/M          least at τ = √(2 δ M)     Young 1974; Daly 2006: - δ

M is a chip's own mean time between failures over the number of chips. Llama 3's 54 days on 16,384
H100 had 419 unexpected interruptions (arXiv 2407.21783, table 5): one in 50,677 chip-hours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from minitrain.errors import InputError

LLAMA3_CHIP_HOURS = 54 * 24 * 16384 / 419


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
    return math.sqrt(2 * failures.save_seconds * failures.between(chips))


def goodput(failures: Failures, chips: int, interval: float | None = None) -> float:
    """The share of the time that trains, at the best interval unless another is given."""
    between = failures.between(chips)
    interval = interval or best_interval(failures, chips)
    saving = failures.save_seconds / interval if interval else 0.0
    lost = saving + interval / (2 * between) + failures.restart_seconds / between
    if lost >= 1:
        raise InputError(
            f"{chips} chips fail every {between / 60:.0f} minutes, and saves and restarts take "
            "longer: nothing would be trained; save faster, restart faster, or use fewer chips"
        )
    return 1 - lost
