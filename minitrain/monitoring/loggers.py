"""TensorBoard, Weights & Biases and Prometheus as sinks, all optional packages.

    tensorboard --logdir runs/NAME/tensorboard
    wandb sync runs/NAME/wandb/offline-run-…      uploads, on request: nothing is sent before

The first two take one sample a second: every number of it becomes a scalar at its step; step parts
are grouped under `parts/`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minitrain.errors import InputError
from minitrain.monitoring.metrics import METRICS, PREFIX
from minitrain.optional import optional
from minitrain.training.report import Sample, Sink

ALWAYS = ("held_out", "ended")


class TensorBoard:
    """A sink; wrap it in `Thinned`, since a scalar costs some 30 µs."""

    def __init__(self, folder: str | os.PathLike) -> None:
        optional("--log-to tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self.writer, self.step = SummaryWriter(str(Path(folder) / "tensorboard")), 0

    def __call__(self, sample: Sample) -> None:
        self.step = int(sample.get("step", self.step))
        for name, value in flat(sample).items():
            if name not in ("time", "step"):
                self.writer.add_scalar(name, value, self.step, walltime=sample["time"])

    def close(self) -> None:
        self.writer.close()


class Wandb:
    """A sink that works offline, without an account; wrap it in `Thinned`."""

    def __init__(self, folder: str | os.PathLike) -> None:
        wandb = optional("--log-to wandb", "wandb")
        self.run = wandb.init(
            project="minitrain",
            name=Path(folder).resolve().name,
            dir=str(folder),
            mode="offline",
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )
        self.step = 0

    def __call__(self, sample: Sample) -> None:
        self.step = int(sample.get("step", self.step))
        self.run.log(flat(sample), step=self.step)

    def close(self) -> None:
        self.run.finish()


def flat(sample: Sample) -> dict[str, float]:
    """The sample's numbers: {"loss": 1.3, "parts/forward": 0.01}."""
    numbers = {}
    for name, value in sample.items():
        if isinstance(value, dict):
            numbers |= {f"{name}/{part}": each for part, each in value.items()}
        elif isinstance(value, (int, float)):
            numbers[name] = value
    return numbers


class Thinned:
    """Gives `sink` the first sample of each second, and each with an evaluation or the run's end.

    A step of a small model takes a few milliseconds, and TensorBoard's writer half of one.
    Skipped samples are merged into the next, so a value that comes once a minute is not lost.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink, self.next = sink, 0.0
        self.held: Sample = {}

    def __call__(self, sample: Sample) -> None:
        self.held |= sample
        if sample["time"] >= self.next or any(name in sample for name in ALWAYS):
            self.next = sample["time"] + 1.0
            held, self.held = self.held, {}
            self.sink(held)

    def close(self) -> None:
        self.sink.close()


LABELS = ("run", "rank")


class Prometheus:
    """A sink that serves http://ADDRESS:PORT/metrics, one per rank, always with the newest sample.

        # TYPE minitrain_loss gauge
        minitrain_loss{rank="0",run="1M-corpus"} 1.318
        minitrain_part_seconds{part="forward",rank="0",run="1M-corpus"} 0.011

    A separate thread answers, even if the rank hangs: then `minitrain_time` stands still, and the
    rule RunStalled fires. A step costs one dict update; the text is made on request.

    port: 0 is any free one. address: 0.0.0.0 for other machines.
    """

    def __init__(self, run: str, rank: int, port: int, address: str = "127.0.0.1") -> None:
        client = optional("--metrics-port", "prometheus_client", "prometheus-client")
        self.labels, self.newest = (run, str(rank)), {}
        registry = client.CollectorRegistry()
        registry.register(self)
        try:
            self.server, self.thread = client.start_http_server(port, address, registry)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", error)
            raise InputError(
                f"--metrics-port {port} cannot be used on rank {rank} ({reason}): each rank takes "
                "the port of its number after it; give one that is free with those behind it"
            ) from None
        self.port: int = self.server.server_port

    def __call__(self, sample: Sample) -> None:
        self.newest = {**self.newest, **sample}  # replaced: the other thread may be reading

    def collect(self) -> Iterator[Any]:
        """Yields the current values for the registry."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        newest = self.newest
        for name, metric in METRICS.items():
            if name in newest:
                kind = CounterMetricFamily if metric.grows else GaugeMetricFamily
                unit = f" ({metric.unit})" if metric.unit else ""
                family = kind(PREFIX + name, metric.words + unit, labels=LABELS)
                family.add_metric(self.labels, float(newest[name]))
                yield family
        parts = GaugeMetricFamily(
            f"{PREFIX}part_seconds", "where the step's time went (s)", labels=(*LABELS, "part")
        )
        for part, seconds in newest.get("parts", {}).items():
            parts.add_metric((*self.labels, part), seconds)
        yield parts

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
