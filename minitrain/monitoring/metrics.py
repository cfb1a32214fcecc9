"""The names in a sample, with units: in the file, on the page, and for Prometheus.

One sample after each step of each rank; a name missing from it keeps its previous value. Local
measurements differ by rank (its compute, its data, its chip); loss, norm and rate are the same on
all. Prometheus has each as `minitrain_NAME`, with the labels `run` and `rank`.
"""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "minitrain_"
PARTS = ("data", "forward", "backward", "average", "optimizer", "step", "evaluation", "checkpoint")
COMMUNICATION, BETWEEN = "communication", "between"


@dataclass(frozen=True)
class Metric:
    words: str
    unit: str = ""
    grows: bool = False  # a counter: only its increase is meaningful


METRICS = {
    "time": Metric("when the step ended, since 1970", "s"),
    "step": Metric("steps made", grows=True),
    "total_steps": Metric("steps of the whole run, an estimate under a time limit"),
    "tokens": Metric("targets trained on, on all ranks", grows=True),
    "seconds": Metric("trained when the step began", "s"),
    "skipped": Metric("steps not made: overflow or refusal", grows=True),
    "loss": Metric("of the step, over all ranks", "nats/token"),
    "held_out": Metric("loss of text never trained on", "nats/token"),
    "floor": Metric("entropy of the text held out", "nats/token"),
    "above_floor": Metric("held-out loss over the floor, less one"),
    "lr": Metric("learning rate"),
    "grad_norm": Metric("before clipping"),
    "loss_z": Metric("highest of the last minute, in deviations over the running mean"),
    "grad_norm_z": Metric("highest of the last minute, in deviations over the running mean"),
    "tokens_per_second": Metric("of the step, on all ranks", "1/s"),
    "mfu": Metric("model FLOPs over the peak of this machine's matmuls"),
    "step_seconds": Metric("from the end of a step to the end of the next", "s"),
    "compute_seconds": Metric("of the step, without waiting for data or other ranks", "s"),
    "data_seconds": Metric("of the step, waiting for the loader", "s"),
    "exposed_seconds": Metric("of the step, waiting for other ranks", "s"),
    "sent_bytes": Metric("by this rank, in the step", "B"),
    "checkpoint_stall_seconds": Metric("in which saves held up the step", "s"),
    "last_checkpoint_time": Metric("when a save was last complete, since 1970", "s"),
    "checkpoint_interval_seconds": Metric("between two saves, as planned", "s"),
    "memory_bytes": Metric("of the process; on a GPU, the most that tensors held", "B"),
    "gpu_utilisation": Metric("share of the last second in which a kernel ran"),
    "gpu_power_watts": Metric("drawn by the chip", "W"),
    "gpu_temperature_celsius": Metric("of the chip", "°C"),
    "gpu_clock_share": Metric("of the highest clock"),
    "gpu_xid": Metric("the last Xid error of the driver; 0: none"),
    "gpu_is_emulated": Metric("1: no chip was asked, a model of one was"),
}


def exposed_name(name: str) -> str:
    """The Prometheus name: "minitrain_loss", or for a counter "minitrain_step_total"."""
    return f"{PREFIX}{name}{'_total' if METRICS[name].grows else ''}"
