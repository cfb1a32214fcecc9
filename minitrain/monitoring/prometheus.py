"""A Prometheus endpoint: http://HOST:PORT/metrics, one per rank, always with the newest sample.

    # TYPE minitrain_loss gauge
    minitrain_loss{rank="0",run="1M-corpus"} 1.318
    minitrain_part_seconds{part="forward",rank="0",run="1M-corpus"} 0.011

A separate thread answers, even if the rank hangs: then `minitrain_time` stands still, and the rule
RunStalled fires. A step costs one dict update; the text is made on request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minitrain.errors import InputError
from minitrain.monitoring.metrics import METRICS, PREFIX
from minitrain.optional import optional
from minitrain.training.report import Sample

LABELS = ("run", "rank")


class Prometheus:
    """A sink that serves at `port`; 0: any free one. `address`: 0.0.0.0 for other machines."""

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
