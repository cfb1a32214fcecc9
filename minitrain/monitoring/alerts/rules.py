"""The rules, each with whoever published its number. One table, for Prometheus and for Python.

A rule fires on a rank once its condition has held there for `lasts`. `python -m minitrain alerts`
prints the table as a rules file of Prometheus's.
"""

from __future__ import annotations

from dataclasses import dataclass

from minitrain.monitoring.alerts.expressions import (
    Expression,
    at_least,
    growth_over,
    latest,
    mean_over,
    median_over,
    median_rank,
    now,
)

PAGE, TICKET = "page", "ticket"  # wake someone; look at it in the morning


@dataclass(frozen=True)
class Rule:
    name: str
    when: Expression
    lasts: str
    severity: str
    says: str
    source: str


RULES = (
    Rule(
        "RunStalled",
        now() - latest("time") > at_least(median_over("step_seconds", "10m") * 5, 60),
        "0s",
        PAGE,
        "no step for 5 median steps, and for a minute",
        "our own, and slow beside a trace of the collectives, which finds 90% within 15 s "
        "(Mycroft, arXiv 2509.03018); a minute, so that an evaluation or a save is no alarm",
    ),
    Rule(
        "LossNotFinite",
        (latest("loss").differs(latest("loss"))) | latest("loss").equals(float("inf")),
        "0s",
        PAGE,
        "the loss is NaN or infinite: the run ends; go back with a lower learning rate",
        "OPT-175B restarted from an older checkpoint, with a lower learning rate, each time its "
        "loss diverged (arXiv 2205.01068, section 2.5)",
    ),
    Rule(
        "LossSpike",
        latest("loss_z") > 6.0,
        "0s",
        PAGE,
        "a loss over the running mean by 6 deviations: look at the batch, or go back",
        "mean and deviation as ZClip's (arXiv 2504.02507: EMA of 0.97), which clips from 2.5 on; "
        "a healthy run here was there in 1 step of 200, and never over 3, so an alert takes 6. "
        "What to do: PaLM, arXiv 2204.02311, section 5.1",
    ),
    Rule(
        "GradientSpike",
        median_over("grad_norm", "1m") > median_over("grad_norm", "1h") * 3,
        "0s",
        TICKET,
        "the median gradient norm of a minute is three times that of the hour",
        "our own; of single steps clipping takes care: one of 1,335 of a healthy run here had a "
        "norm 31 deviations over the running mean",
    ),
    Rule(
        "StepsSkipped",
        growth_over("skipped", "10m") > 10.0,
        "0s",
        TICKET,
        "more than 10 steps of 10 minutes were not made: overflow, or refused as spikes",
        "a loss scale that is right skips one step in 2,000 (Micikevicius et al., "
        "arXiv 1710.03740; GradScaler's growth interval)",
    ),
    Rule(
        "Straggler",
        mean_over("compute_seconds", "1m") > median_rank(mean_over("compute_seconds", "1m")) * 1.1,
        "2m",
        TICKET,
        "a rank computes 10% longer than the median rank, and all wait for it",
        "compute before the collective, as in MegaScale (arXiv 2402.15627, section 6.3); what one "
        "costs: Lin et al., arXiv 2505.05713",
    ),
    Rule(
        "MfuDropped",
        median_over("mfu", "5m") < median_over("mfu", "1h") * 0.95,
        "5m",
        TICKET,
        "the median MFU of 5 minutes is 5% under that of the hour",
        "Llama 3 saw 1 to 2% by the time of the day, in the heat of noon (arXiv 2407.21783, "
        "section 3.3.4); MegaScale hunts for the rest (section 6.3)",
    ),
    Rule(
        "GpuHot",
        latest("gpu_temperature_celsius") > 85.0,
        "5m",
        TICKET,
        "over 85 °C for 5 minutes: soon it throttles, and all ranks with it",
        "a rented GPU of 88 °C ran at a quarter of its clock: matt.sh/cloud-gpu-thermal-throttling",
    ),
    Rule(
        "GpuXid",
        latest("gpu_xid").equals(48.0) | latest("gpu_xid").equals(79.0),
        "0s",
        PAGE,
        "Xid 48 (double-bit memory error) or 79 (fallen off the bus): take the node out",
        "NVIDIA, Xid Errors; of Llama 3's 419 unexpected interruptions 148 were faulty GPUs, 72 "
        "their memory (arXiv 2407.21783, table 5)",
    ),
    Rule(
        "LoaderWait",
        mean_over("data_seconds", "5m") > mean_over("step_seconds", "5m") * 0.02,
        "5m",
        TICKET,
        "more than 2% of the time goes to waiting for data",
        "our own: a loader that reads ahead waits for nothing (labs/e11)",
    ),
    Rule(
        "CheckpointOld",
        now() - latest("last_checkpoint_time") > latest("checkpoint_interval_seconds") * 2,
        "1m",
        PAGE,
        "two intervals without a complete save: a kill would cost all steps since",
        "two intervals: one may be under way; how long one should be: Young 1974, Daly 2006",
    ),
)
