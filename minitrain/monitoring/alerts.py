"""Alert rules: each a plain function of a run's samples, beside the same condition in PromQL.

    condition   ...TTTTTTTTTT..      of one rule on one rank
    alert       ...ppppFFFFFF..      pending for `lasts` seconds, then firing while it holds

`python -m minitrain alerts` prints the table as a file for Prometheus. A test feeds promtool the
samples of failing runs: it must raise the same alerts at the same times. So the functions follow
Prometheus: a value holds until the next one, a window of a minute has the scrapes of that minute,
and no comparison with NaN is true.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from minitrain.errors import InputError
from minitrain.monitoring.metrics import METRICS
from minitrain.training.report import Sample

MINUTE, HOUR = 60.0, 3600.0  # seconds; an hour is the longest window
PAGE, TICKET = "page", "ticket"  # wake someone; look at it in the morning
HEAD = (
    "# Alert rules of minitrain, written by `python -m minitrain alerts`: edit the table instead.\n"
)


class Scrapes:
    """The newest sample of each rank, and the past hour of the values that rules use."""

    def __init__(self) -> None:
        self.now = 0.0
        self.newest: dict[int, Sample] = {}
        self.past: dict[str, dict[int, deque[tuple[float, float]]]] = {}  # by name and rank

    @property
    def ranks(self) -> list[int]:
        return sorted(self.newest)

    def add(self, now: float, newest: dict[int, Sample]) -> None:
        self.now, self.newest = now, newest
        for name in self.past:
            self._remember(name)

    def latest(self, name: str) -> np.ndarray:
        """(N,): the newest value of each rank, NaN if there is none."""
        if name not in METRICS:
            raise InputError(f"no metric is called '{name}': known are {', '.join(METRICS)}")
        return np.array([float(self.newest[rank].get(name, math.nan)) for rank in self.ranks])

    def over(
        self, seconds: float, name: str, reduce: Callable[[list[float]], float] = np.median
    ) -> np.ndarray:
        """(N,): each rank's values of the last `seconds`, reduced; NaN if there are none. Values of
        a name are kept from its first use on."""
        if name not in self.past:
            self.past[name] = defaultdict(deque)
            self._remember(name)
        past = (self.past[name][rank] for rank in self.ranks)
        windows = ([value for time, value in own if time >= self.now - seconds] for own in past)
        return np.array([reduce(window) if window else math.nan for window in windows])

    def _remember(self, name: str) -> None:
        for rank, value in zip(self.ranks, self.latest(name)):
            if name in self.newest[rank]:
                own = self.past[name][rank]
                own.append((self.now, value))
                while own[0][0] < self.now - HOUR:
                    own.popleft()


@dataclass(frozen=True)
class Rule:
    """`holds(scrapes)` returns (N,) booleans, whether the condition is true on each rank; `promql`
    is the same condition for Prometheus. It fires once it has held for `lasts` seconds."""

    name: str
    holds: Callable[[Scrapes], np.ndarray]
    promql: str
    lasts: float
    severity: str
    says: str
    source: str


def stalled(run: Scrapes) -> np.ndarray:
    limit = np.maximum(5 * run.over(10 * MINUTE, "step_seconds"), 60)
    return run.now - run.latest("time") > limit


def not_finite(run: Scrapes) -> np.ndarray:
    return np.array([not math.isfinite(run.newest[rank].get("loss", 0.0)) for rank in run.ranks])


def straggler(run: Scrapes) -> np.ndarray:
    compute = run.over(MINUTE, "compute_seconds", np.mean)
    measured = compute[~np.isnan(compute)]
    return compute > 1.1 * (np.median(measured) if len(measured) else math.nan)


def loader_wait(run: Scrapes) -> np.ndarray:
    waited = run.over(5 * MINUTE, "data_seconds", np.mean)
    return waited > 0.02 * run.over(5 * MINUTE, "step_seconds", np.mean)


def checkpoint_old(run: Scrapes) -> np.ndarray:
    age = run.now - run.latest("last_checkpoint_time")
    return age > 2 * run.latest("checkpoint_interval_seconds")


RULES = (
    Rule(
        "RunStalled",
        stalled,
        "time() - minitrain_time > "
        "clamp_min(5 * quantile_over_time(0.5, minitrain_step_seconds[10m]), 60)",
        0,
        PAGE,
        "no step for 5 median steps, and for a minute",
        "our own, and slow beside a trace of the collectives, which finds 90% within 15 s "
        "(Mycroft, arXiv 2509.03018); a minute, so that an evaluation or a save is no alarm",
    ),
    Rule(
        "LossNotFinite",
        not_finite,
        "minitrain_loss != minitrain_loss or abs(minitrain_loss) == Inf",
        0,
        PAGE,
        "the loss is NaN or infinite: the run ends; go back with a lower learning rate",
        "OPT-175B restarted from an older checkpoint, with a lower learning rate, each time its "
        "loss diverged (arXiv 2205.01068, section 2.5)",
    ),
    Rule(
        "LossSpike",
        lambda run: run.latest("loss_z") > 6,
        "minitrain_loss_z > 6",
        0,
        PAGE,
        "the loss is 6 deviations over its running mean: look at the batch, or go back",
        "mean and deviation as ZClip's (arXiv 2504.02507: EMA of 0.97), which clips from 2.5 on; "
        "a healthy run here was there in 1 step of 200, and never over 3, so an alert takes 6. "
        "What to do: PaLM, arXiv 2204.02311, section 5.1",
    ),
    Rule(
        "GradientSpike",
        lambda run: run.over(MINUTE, "grad_norm") > 3 * run.over(HOUR, "grad_norm"),
        "quantile_over_time(0.5, minitrain_grad_norm[1m]) > "
        "3 * quantile_over_time(0.5, minitrain_grad_norm[1h])",
        0,
        TICKET,
        "the median gradient norm of a minute is three times that of the hour",
        "our own; of single steps clipping takes care: one of 1,335 of a healthy run here had a "
        "norm 31 deviations over the running mean",
    ),
    Rule(
        "StepsSkipped",
        lambda run: run.over(10 * MINUTE, "skipped", np.ptp) > 10,
        "max_over_time(minitrain_skipped_total[10m]) - min_over_time(minitrain_skipped_total[10m])"
        " > 10",
        0,
        TICKET,
        "more than 10 steps were skipped in 10 minutes: overflow, or refused as spikes",
        "a loss scale that is right skips one step in 2,000 (Micikevicius et al., "
        "arXiv 1710.03740; GradScaler's growth interval)",
    ),
    Rule(
        "Straggler",
        straggler,
        "avg_over_time(minitrain_compute_seconds[1m]) > on (run) group_left () "
        "1.1 * quantile by (run) (0.5, avg_over_time(minitrain_compute_seconds[1m]))",
        2 * MINUTE,
        TICKET,
        "a rank computes 10% longer than the median rank, and all wait for it",
        "compute before the collective, as in MegaScale (arXiv 2402.15627, section 6.3); what one "
        "costs: Lin et al., arXiv 2505.05713",
    ),
    Rule(
        "MfuDropped",
        lambda run: run.over(5 * MINUTE, "mfu") < 0.95 * run.over(HOUR, "mfu"),
        "quantile_over_time(0.5, minitrain_mfu[5m]) < "
        "0.95 * quantile_over_time(0.5, minitrain_mfu[1h])",
        5 * MINUTE,
        TICKET,
        "the median MFU of 5 minutes is 5% under that of the hour",
        "Llama 3 saw 1 to 2% by the time of the day, in the heat of noon (arXiv 2407.21783, "
        "section 3.3.4); MegaScale hunts for the rest (section 6.3)",
    ),
    Rule(
        "GpuHot",
        lambda run: run.latest("gpu_temperature_celsius") > 85,
        "minitrain_gpu_temperature_celsius > 85",
        5 * MINUTE,
        TICKET,
        "over 85 °C for 5 minutes: soon it throttles, and all ranks with it",
        "a rented GPU of 88 °C ran at a quarter of its clock: matt.sh/cloud-gpu-thermal-throttling",
    ),
    Rule(
        "GpuXid",
        lambda run: np.isin(run.latest("gpu_xid"), (48, 79)),
        "minitrain_gpu_xid == 48 or minitrain_gpu_xid == 79",
        0,
        PAGE,
        "Xid 48 (double-bit memory error) or 79 (fallen off the bus): take the node out",
        "NVIDIA, Xid Errors; of Llama 3's 419 unexpected interruptions 148 were faulty GPUs, 72 "
        "their memory (arXiv 2407.21783, table 5)",
    ),
    Rule(
        "LoaderWait",
        loader_wait,
        "avg_over_time(minitrain_data_seconds[5m]) > "
        "0.02 * avg_over_time(minitrain_step_seconds[5m])",
        5 * MINUTE,
        TICKET,
        "more than 2% of the time goes to waiting for data",
        "our own: a loader that reads ahead waits for nothing (labs/e11)",
    ),
    Rule(
        "CheckpointOld",
        checkpoint_old,
        "time() - minitrain_last_checkpoint_time > 2 * minitrain_checkpoint_interval_seconds",
        MINUTE,
        PAGE,
        "two intervals without a complete save: a kill would cost all steps since",
        "two intervals: one may be under way; how long one should be: Young 1974, Daly 2006",
    ),
)


@dataclass(frozen=True)
class Alert:
    """A rule firing on a rank; `since`: when it began to fire."""

    rule: Rule
    rank: int
    since: float

    @property
    def name(self) -> str:
        return self.rule.name


class Alerts:
    """`scrape(now, newest)`, in time order -> the alerts now firing; `fired`: all so far."""

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self.rules, self.scrapes = rules, Scrapes()
        self.firing: list[Alert] = []
        self.fired: list[Alert] = []  # each once, at its start
        self._since: dict[tuple[str, int], float] = {}  # start of the current true period
        self._begun: dict[tuple[str, int], Alert] = {}

    def scrape(self, now: float, newest: dict[int, Sample]) -> list[Alert]:
        self.scrapes.add(now, newest)
        self.firing = [alert for rule in self.rules for alert in self._of(rule)]
        return self.firing

    def _of(self, rule: Rule) -> Iterable[Alert]:
        for rank, holds in zip(self.scrapes.ranks, rule.holds(self.scrapes)):
            key, now = (rule.name, rank), self.scrapes.now
            if not holds:
                self._since.pop(key, None)
                self._begun.pop(key, None)
            elif now - self._since.setdefault(key, now) >= rule.lasts:
                if key not in self._begun:
                    self._begun[key] = Alert(rule, rank, now)
                    self.fired.append(self._begun[key])
                yield self._begun[key]


def rules_file(rules: Sequence[Rule] = RULES) -> str:
    """The rules in Prometheus's format. Strings are quoted as in JSON, which is valid YAML."""
    lines = [HEAD + "groups:", "  - name: minitrain", "    rules:"]
    for rule in rules:
        lines += [
            f"      - alert: {rule.name}",
            f"        expr: {json.dumps(rule.promql)}",
            f"        for: {rule.lasts:g}s",
            f"        labels: {{severity: {rule.severity}}}",
            "        annotations:",
            f"          summary: {json.dumps(rule.says, ensure_ascii=False)}",
            f"          source: {json.dumps(rule.source, ensure_ascii=False)}",
        ]
    return "\n".join(lines) + "\n"
