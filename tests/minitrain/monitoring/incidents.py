"""An hour of a run on eight emulated chips, in which something may go wrong: one seed, one trace.

    trace(7, "fan").scrapes   [(time, {rank: {"loss": …, "compute_seconds": …, …}}), …]   every 15 s
    label(7, "fan")           on which rank it goes wrong, and from when on

Steps end together: the slowest rank sets the pace, and its chip's heat sets its clock. Noise is
that of a healthy cluster: 1% of compute, 0.5% of the network, losses with a spread of 1%.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from minitrain.monitoring.alerts import Alerts
from minitrain.monitoring.hardware import Heat
from minitrain.monitoring.meter import Highest
from minitrain.training.report import Sample

RANKS, HOUR_SECONDS, INTERVAL = 8, 3600, 15.0
COMPUTE_SECONDS, NETWORK_SECONDS, STEPS_A_SCRAPE = 1.2, 0.3, 10
CHECKPOINT_SECONDS = 300.0
HEALTHY = "healthy"
INCIDENTS = (
    *("straggler", "fan", "network", "loader", "loss spike", "gradient spike"),
    *("not finite", "hang", "no saves", "overflow", "xid"),
)
KINDS = (HEALTHY, *INCIDENTS)


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


def label(seed: int, kind: str) -> Label:
    """The incident in `trace(seed, kind)`."""
    if kind == HEALTHY:
        return Label(kind)
    random = np.random.default_rng([seed, 1])
    rank, begins, strength = random.integers(RANKS), random.uniform(0.4, 0.6), random.random()
    return Label(kind, int(rank), float(begins * HOUR_SECONDS), float(strength))


def trace(seed: int, kind: str) -> Trace:
    planted, run = label(seed, kind), Cluster(np.random.default_rng([seed, 2]))
    scrapes, newest = [], {}
    for now in np.arange(INTERVAL, HOUR_SECONDS + 1, INTERVAL).tolist():
        if planted.begins is not None and now >= planted.begins:
            go_wrong(run, planted)
        if not (run.hung or any(not np.isfinite(own["loss"]) for own in newest.values())):
            newest = run.scrape(now)
        scrapes.append((now, newest))
    return Trace(seed, scrapes)


def go_wrong(run: Cluster, planted: Label) -> None:
    """Changes the run before each scrape, from the incident on."""
    rank, strength = planted.rank, planted.strength
    match planted.kind:
        case "straggler":
            run.slow[rank] = 1.15 + 0.5 * strength
        case "fan":
            run.heat[rank].cooling_fault = 1.35 + 0.4 * strength
        case "network":
            run.network = NETWORK_SECONDS * (1.5 + 2 * strength)
        case "loader":
            run.data = 0.05 + 0.2 * strength
        case "loss spike":
            run.loss_jump = 0.5 + 3 * strength
        case "gradient spike":
            run.norm_jump = 3.0 + 20 * strength
        case "not finite":
            run.not_finite = True
        case "hang":
            run.hung = True
        case "no saves":
            run.saving = False
        case "overflow":
            run.skipping = 0.1 + 0.5 * strength
        case "xid":
            run.xid[rank] = 79 if strength > 0.5 else 48


@dataclass
class Cluster:
    """The state of the emulated run."""

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
    steps: int = 0
    skipped: int = 0
    last_saved: float = 0.0
    losses: Highest = field(default_factory=Highest)

    def scrape(self, now: float) -> dict[int, Sample]:
        """The newest sample of each rank after ten steps more."""
        self.skipped += int(self.random.binomial(STEPS_A_SCRAPE, self.skipping))
        if self.saving and now - self.last_saved >= CHECKPOINT_SECONDS:
            self.last_saved = now
        shared = self._shared(now)
        return {rank: shared | own for rank, own in enumerate(self._of_ranks())}

    def _shared(self, now: float) -> Sample:
        """The values that all ranks share; each step counts for the deviations."""
        for step in range(self.steps, self.steps + STEPS_A_SCRAPE):
            loss = (1.5 + 4.0 / (1 + step / 200)) * self.random.normal(1.0, 0.01) + self.loss_jump
            norm = 0.4 * self.random.lognormal(0.0, 0.15) + self.norm_jump
            z = self.losses.add(loss, now)
        self.steps += STEPS_A_SCRAPE
        self.loss_jump *= 0.9  # the model recovers
        self.norm_jump *= 0.5
        if self.not_finite:
            loss = norm = float("nan")
        return {
            "time": now,
            "step": self.steps,
            "loss": loss,
            "grad_norm": norm,
            "skipped": self.skipped,
            "last_checkpoint_time": self.last_saved,
            "checkpoint_interval_seconds": CHECKPOINT_SECONDS,
            **({} if z is None else {"loss_z": z}),
        }

    def _of_ranks(self) -> list[Sample]:
        """Each rank's own values: the slowest rank's compute sets everybody's pace."""
        clocks = np.array([heat.clock for heat in self.heat])
        compute = COMPUTE_SECONDS * self.slow / clocks * self.random.normal(1.0, 0.01, RANKS)
        network = self.network * self.random.normal(1.0, 0.005)
        step_seconds = float(compute.max() + network + self.data)
        samples = []
        for rank, (heat, seconds) in enumerate(zip(self.heat, compute.tolist())):
            heat.advance(seconds / step_seconds, INTERVAL)
            samples.append(
                {
                    "step_seconds": step_seconds,
                    "compute_seconds": seconds,
                    "data_seconds": self.data,
                    "mfu": 0.5 * COMPUTE_SECONDS / step_seconds,
                    "gpu_temperature_celsius": heat.celsius,
                    "gpu_xid": float(self.xid[rank]),
                }
            )
        return samples


def alarms_of(seen: Trace) -> list[tuple[float, str, int]]:
    """When each rule fired, its name, and on which rank."""
    alerts = Alerts()
    for now, newest in seen.scrapes:
        alerts.scrape(now, newest)
    return [(alert.since, alert.name, alert.rank) for alert in alerts.fired]
