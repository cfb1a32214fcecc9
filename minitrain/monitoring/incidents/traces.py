"""An hour of a run on eight emulated chips, in which something may go wrong: one seed, one trace.

    trace(7).scrapes   [(time, {rank: {"loss": …, "compute_seconds": …, …}}), …]   every 15 s
    label(7)           what went wrong, on which rank, from when on: not to be looked at before

Steps end together: the slowest rank sets the pace, and its chip's heat sets its clock (heat.py).
Noise is that of a healthy cluster: 1% of compute, 0.5% of the network, losses with a spread of 1%.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minitrain.errors import InputError
from minitrain.monitoring.hardware.heat import Heat
from minitrain.monitoring.meter import Highest
from minitrain.training.report import Sample

RANKS, MINUTES, INTERVAL = 8, 60, 15.0
COMPUTE_SECONDS, NETWORK_SECONDS, STEPS_A_SCRAPE = 1.2, 0.3, 10
CHECKPOINT_SECONDS = 300.0
HEALTHY = "healthy"


@dataclass(frozen=True)
class Label:
    """A planted incident. `rank`: None where it is on all. `begins`: seconds from the start."""

    kind: str
    rank: int | None = None
    begins: float | None = None
    strength: float = 0.0


@dataclass(frozen=True)
class Trace:
    """The monitored run: at each time, the newest sample of each rank."""

    seed: int
    scrapes: list[tuple[float, dict[int, Sample]]] = field(repr=False)


@dataclass
class Cluster:
    """The state of the emulated run, which an incident's function changes before each scrape."""

    random: np.random.Generator
    slow: np.ndarray = field(default_factory=lambda: np.ones(RANKS))  # times the compute
    heat: list[Heat] = field(default_factory=lambda: [Heat(celsius=70.0) for _ in range(RANKS)])
    network: float = NETWORK_SECONDS
    data: float = 0.002  # seconds a step waits for its batch
    loss_jump: float = 0.0
    norm_jump: float = 0.0
    not_finite: bool = False
    hung: bool = False
    saving: bool = True
    skipping: float = 0.0005  # share of steps that overflow
    xid: np.ndarray = field(default_factory=lambda: np.zeros(RANKS))


def _straggler(run: Cluster, label: Label) -> None:
    run.slow[label.rank] = 1.15 + 0.5 * label.strength


def _fan(run: Cluster, label: Label) -> None:
    run.heat[label.rank].cooling_fault = 1.35 + 0.4 * label.strength


def _network(run: Cluster, label: Label) -> None:
    run.network = NETWORK_SECONDS * (1.5 + 2 * label.strength)


def _loader(run: Cluster, label: Label) -> None:
    run.data = 0.05 + 0.2 * label.strength


def _spike(run: Cluster, label: Label) -> None:
    run.loss_jump = 0.5 + 3 * label.strength


def _gradients(run: Cluster, label: Label) -> None:
    run.norm_jump = 3.0 + 20 * label.strength


def _not_finite(run: Cluster, label: Label) -> None:
    run.not_finite = True


def _hang(run: Cluster, label: Label) -> None:
    run.hung = True


def _save(run: Cluster, label: Label) -> None:
    run.saving = False


def _overflow(run: Cluster, label: Label) -> None:
    run.skipping = 0.1 + 0.5 * label.strength


def _xid(run: Cluster, label: Label) -> None:
    run.xid[label.rank] = 79 if label.strength > 0.5 else 48


INCIDENTS: dict[str, Callable[[Cluster, Label], None]] = {
    "straggler": _straggler,
    "fan": _fan,
    "network": _network,
    "loader": _loader,
    "loss spike": _spike,
    "gradient spike": _gradients,
    "not finite": _not_finite,
    "hang": _hang,
    "no saves": _save,
    "overflow": _overflow,
    "xid": _xid,
}
KINDS = (HEALTHY, *INCIDENTS)


def label(seed: int, kind: str | None = None) -> Label:
    """The incident in `trace(seed, kind)`; kind None: drawn, half of them healthy."""
    random = np.random.default_rng([seed, 1])
    drawn = HEALTHY if random.random() < 0.5 else str(random.choice(list(INCIDENTS)))
    rank, begins, strength = random.integers(RANKS), random.uniform(0.4, 0.6), random.random()
    kind = kind or drawn
    if kind == HEALTHY:
        return Label(kind)
    if kind not in INCIDENTS:
        raise InputError(f"no incident is called '{kind}': known are {', '.join(KINDS)}")
    return Label(kind, int(rank), float(begins * MINUTES * 60), float(strength))


def trace(seed: int, kind: str | None = None) -> Trace:
    """The trace of a seed; `kind`: plant this, whatever would have been drawn."""
    planted = label(seed, kind)
    run = Cluster(np.random.default_rng([seed, 2]))
    losses, norms = Highest(), Highest()
    scrapes, newest, steps, skipped = [], {}, 0, 0
    last_saved, now = 0.0, 0.0
    while now < MINUTES * 60:
        now += INTERVAL
        if planted.begins is not None and now >= planted.begins:
            INCIDENTS[planted.kind](run, planted)
        if not (run.hung or _has_ended(newest)):
            steps += STEPS_A_SCRAPE
            skipped += int(run.random.binomial(STEPS_A_SCRAPE, run.skipping))
            if run.saving and now - last_saved >= CHECKPOINT_SECONDS:
                last_saved = now
            shared = _shared(run, steps, now, losses, norms)
            shared |= {"skipped": skipped, "last_checkpoint_time": last_saved}
            newest = {rank: shared | own for rank, own in enumerate(_of_ranks(run))}
        scrapes.append((now, newest))
    return Trace(seed, scrapes)


def _has_ended(newest: dict[int, Sample]) -> bool:
    """A run whose loss is no number ends, and its last sample stays."""
    return any(not np.isfinite(sample["loss"]) for sample in newest.values())


def _shared(run: Cluster, steps: int, now: float, losses: Highest, norms: Highest) -> Sample:
    """The values that all ranks share at the last step; each step counts for the deviations."""
    for step in range(steps - STEPS_A_SCRAPE, steps):
        loss = (1.5 + 4.0 / (1 + step / 200)) * run.random.normal(1.0, 0.01) + run.loss_jump
        norm = 0.4 * run.random.lognormal(0.0, 0.15) + run.norm_jump
        z = losses.add(loss, now), norms.add(norm, now)
    run.loss_jump *= 0.9  # the model recovers
    run.norm_jump *= 0.5
    if run.not_finite:
        loss = norm = float("nan")
    found: dict[str, Any] = {"time": now, "step": steps, "loss": loss, "grad_norm": norm}
    found["checkpoint_interval_seconds"] = CHECKPOINT_SECONDS
    return found | {n: v for n, v in zip(("loss_z", "grad_norm_z"), z) if v is not None}


def _of_ranks(run: Cluster) -> list[Sample]:
    """Each rank's own values: the slowest rank's compute sets everybody's pace."""
    clocks = np.array([heat.clock for heat in run.heat])
    compute = COMPUTE_SECONDS * run.slow / clocks * run.random.normal(1.0, 0.01, RANKS)
    network = run.network * run.random.normal(1.0, 0.005)
    step_seconds = float(compute.max() + network + run.data)
    mfu = 0.5 * COMPUTE_SECONDS / step_seconds
    samples = []
    for rank, heat in enumerate(run.heat):
        watts = heat.advance(float(compute[rank]) / step_seconds, INTERVAL)
        samples.append(
            {
                "step_seconds": step_seconds,
                "compute_seconds": float(compute[rank]),
                "exposed_seconds": step_seconds - run.data - float(compute[rank]),
                "data_seconds": run.data,
                "mfu": mfu,
                "gpu_power_watts": watts,
                "gpu_temperature_celsius": heat.celsius,
                "gpu_clock_share": heat.clock,
                "gpu_xid": float(run.xid[rank]),
                "gpu_is_emulated": 1,
            }
        )
    return samples
