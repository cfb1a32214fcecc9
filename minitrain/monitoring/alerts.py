"""Alert rules: each a plain function of a run's samples, beside the same condition in PromQL, and
each of their numbers once.

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
from typing import Any

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
    """A condition in Python and in PromQL; it fires once it has held for `lasts` seconds.

    `condition(scrapes, rule)`, `query` (PromQL) and `message` share one `limit` and one `window`,
    in seconds: the first reads them off the rule, the others have them in braces.
    """

    name: str
    condition: Callable[[Scrapes, Rule], np.ndarray]
    query: str
    lasts: float
    severity: str
    message: str
    source: str
    limit: Any = None  # a number, or the values that are refused
    window: float = MINUTE

    def holds(self, run: Scrapes) -> np.ndarray:
        """(N,) booleans: whether the condition is true on each rank."""
        return self.condition(run, self)

    @property
    def promql(self) -> str:
        return self._numbered(self.query)

    @property
    def says(self) -> str:
        return self._numbered(self.message)

    def _numbered(self, text: str) -> str:
        minutes = {"minutes": self.window / MINUTE, "pending": self.lasts / MINUTE}
        return text.format(
            limit=self.limit, window=self.window, minute=MINUTE, hour=HOUR, **minutes
        )


def stalled(run: Scrapes, rule: Rule) -> np.ndarray:
    longest = np.maximum(rule.limit * run.over(rule.window, "step_seconds"), MINUTE)
    return run.now - run.latest("time") > longest


def not_finite(run: Scrapes, rule: Rule) -> np.ndarray:
    return np.array([not math.isfinite(run.newest[rank].get("loss", 0.0)) for rank in run.ranks])


def straggler(run: Scrapes, rule: Rule) -> np.ndarray:
    compute = run.over(rule.window, "compute_seconds", np.mean)
    measured = compute[~np.isnan(compute)]
    return compute > rule.limit * (np.median(measured) if len(measured) else math.nan)


def gradient_spike(run: Scrapes, rule: Rule) -> np.ndarray:
    return run.over(rule.window, "grad_norm") > rule.limit * run.over(HOUR, "grad_norm")


def mfu_dropped(run: Scrapes, rule: Rule) -> np.ndarray:
    return run.over(rule.window, "mfu") < rule.limit * run.over(HOUR, "mfu")


def loader_wait(run: Scrapes, rule: Rule) -> np.ndarray:
    waited = run.over(rule.window, "data_seconds", np.mean)
    return waited > rule.limit * run.over(rule.window, "step_seconds", np.mean)


def checkpoint_old(run: Scrapes, rule: Rule) -> np.ndarray:
    age = run.now - run.latest("last_checkpoint_time")
    return age > rule.limit * run.latest("checkpoint_interval_seconds")


RULES = (
    Rule(
        "RunStalled",
        stalled,
        "time() - minitrain_time > "
        "clamp_min({limit} * quantile_over_time(0.5, minitrain_step_seconds[{window:g}s]), "
        "{minute:g})",
        0,
        PAGE,
        "no step for {limit} median steps, and for {minute:g} s",
        "our own, and slow beside a trace of the collectives, which finds 90% within 15 s "
        "(Mycroft, arXiv 2509.03018); a minute, so that an evaluation or a save is no alarm",
        limit=5,
        window=10 * MINUTE,
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
        lambda run, rule: run.latest("loss_z") > rule.limit,
        "minitrain_loss_z > {limit}",
        0,
        PAGE,
        "the loss is {limit} deviations over its running mean: look at the batch, or go back",
        "mean and deviation as ZClip's (arXiv 2504.02507: EMA of 0.97), which clips from 2.5 on; "
        "a healthy run here was there in 1 step of 200, and never over 3, so an alert takes 6. "
        "What to do: PaLM, arXiv 2204.02311, section 5.1",
        limit=6,
    ),
    Rule(
        "GradientSpike",
        gradient_spike,
        "quantile_over_time(0.5, minitrain_grad_norm[{window:g}s]) > "
        "{limit} * quantile_over_time(0.5, minitrain_grad_norm[{hour:g}s])",
        0,
        TICKET,
        "the median gradient norm of {window:g} s is over {limit} times that of the hour",
        "our own; of single steps clipping takes care: one of 1,335 of a healthy run here had a "
        "norm 31 deviations over the running mean",
        limit=3,
    ),
    Rule(
        "StepsSkipped",
        lambda run, rule: run.over(rule.window, "skipped", np.ptp) > rule.limit,
        "max_over_time(minitrain_skipped_total[{window:g}s]) - "
        "min_over_time(minitrain_skipped_total[{window:g}s]) > {limit}",
        0,
        TICKET,
        "more than {limit} steps were skipped in {minutes:g} minutes: "
        "overflow, or refused as spikes",
        "a loss scale that is right skips one step in 2,000 (Micikevicius et al., "
        "arXiv 1710.03740; GradScaler's growth interval)",
        limit=10,
        window=10 * MINUTE,
    ),
    Rule(
        "Straggler",
        straggler,
        "avg_over_time(minitrain_compute_seconds[{window:g}s]) > on (run) group_left () "
        "{limit} * quantile by (run) (0.5, avg_over_time(minitrain_compute_seconds[{window:g}s]))",
        2 * MINUTE,
        TICKET,
        "a rank computes over {limit} times as long as the median rank, and all wait for it",
        "compute before the collective, as in MegaScale (arXiv 2402.15627, section 6.3); what one "
        "costs: Lin et al., arXiv 2505.05713",
        limit=1.1,
    ),
    Rule(
        "MfuDropped",
        mfu_dropped,
        "quantile_over_time(0.5, minitrain_mfu[{window:g}s]) < "
        "{limit} * quantile_over_time(0.5, minitrain_mfu[{hour:g}s])",
        5 * MINUTE,
        TICKET,
        "the median MFU of {minutes:g} minutes is under {limit:.0%} of that of the hour",
        "Llama 3 saw 1 to 2% by the time of the day, in the heat of noon (arXiv 2407.21783, "
        "section 3.3.4); MegaScale hunts for the rest (section 6.3)",
        limit=0.95,
        window=5 * MINUTE,
    ),
    Rule(
        "GpuHot",
        lambda run, rule: run.latest("gpu_temperature_celsius") > rule.limit,
        "minitrain_gpu_temperature_celsius > {limit}",
        5 * MINUTE,
        TICKET,
        "over {limit} °C for {pending:g} minutes: soon it throttles, and all ranks with it",
        "a rented GPU of 88 °C ran at a quarter of its clock: matt.sh/cloud-gpu-thermal-throttling",
        limit=85,
    ),
    Rule(
        "GpuXid",
        lambda run, rule: np.isin(run.latest("gpu_xid"), rule.limit),
        "minitrain_gpu_xid == {limit[0]} or minitrain_gpu_xid == {limit[1]}",
        0,
        PAGE,
        "Xid {limit[0]} (double-bit memory error) or {limit[1]} (fallen off the bus): "
        "take the node out",
        "NVIDIA, Xid Errors; of Llama 3's 419 unexpected interruptions 148 were faulty GPUs, 72 "
        "their memory (arXiv 2407.21783, table 5)",
        limit=(48, 79),
    ),
    Rule(
        "LoaderWait",
        loader_wait,
        "avg_over_time(minitrain_data_seconds[{window:g}s]) > "
        "{limit} * avg_over_time(minitrain_step_seconds[{window:g}s])",
        5 * MINUTE,
        TICKET,
        "more than {limit:.0%} of the time goes to waiting for data",
        "our own: a loader that reads ahead waits for nothing (labs/e11)",
        limit=0.02,
        window=5 * MINUTE,
    ),
    Rule(
        "CheckpointOld",
        checkpoint_old,
        "time() - minitrain_last_checkpoint_time > {limit} * minitrain_checkpoint_interval_seconds",
        MINUTE,
        PAGE,
        "{limit} intervals without a complete save: a kill would cost all steps since",
        "two intervals: one may be under way; how long one should be: Young 1974, Daly 2006",
        limit=2,
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
