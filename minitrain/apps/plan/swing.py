"""The output of `plan swing`: the power of a job over a minute, as it is and with each cure."""

from __future__ import annotations

from minitrain.apps.plan.show import say, show_json, show_table
from minitrain.monitoring.power_swing import BAND, JobPower, job_power

CURES = {
    "as it is": {},
    "half work while waiting": {"dummy": 0.5},
    "full work while waiting": {"dummy": 1.0},
    "in two groups": {"groups": 2},
    "in ten groups": {"groups": 10},
}


NOTHING = {"hz": None, "amplitude_watts": 0.0}


def frequencies_reach(job: JobPower) -> bool:
    """True if any sampled frequency lies in the band."""
    frequencies, _ = job.spectrum()
    return bool(((frequencies >= BAND[0]) & (frequencies <= BAND[1])).any())


def rows(gpus: int, compute: float, wait: float) -> list[dict]:
    """Watts of each way, over 60 steps; `hz` of the largest amplitude in the grid's band."""
    step = compute + wait
    found = []
    for way, cure in CURES.items():
        job = job_power(gpus, compute, wait, 60 * step, step / 200, **cure)
        row = {"way": way, "mean_watts": job.mean_watts, "swing_watts": job.swing_watts}
        hz, amplitude = job.strongest() if frequencies_reach(job) else (None, 0.0)
        is_seen = amplitude > 1e-6 * job.mean_watts  # not rounding: a step may be out of the band
        found.append(row | ({"hz": hz, "amplitude_watts": amplitude} if is_seen else NOTHING))
    return found


def report(gpus: int, compute: float, wait: float, as_json: bool) -> None:
    made = rows(gpus, compute, wait)
    if as_json:
        show_json({"emulated": True, "rows": made})
        return
    show_table(
        [
            {
                "the ranks work": row["way"],
                "mean (MW)": f"{row['mean_watts'] / 1e6:.2f}",
                "up and down (MW)": f"{row['swing_watts'] / 1e6:.2f}",
                f"strongest of {BAND[0]:g} to {BAND[1]:g} Hz (MW)": "–"
                if row["hz"] is None
                else f"{row['amplitude_watts'] / 1e6:.2f} at {row['hz']:.2g} Hz",
            }
            for row in made
        ],
        f"{gpus:,} H100, {compute:g} s of compute and {wait:g} s of waiting a step (emulated)",
        left=("the ranks work",),
    )
    say("Work while waiting costs energy; groups cost none, but each has to end its step alone.")
