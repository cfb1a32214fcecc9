"""The measurements of a run and their sinks: files, TensorBoard, wandb, Prometheus, Perfetto."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from minitrain.apps.train.setup import Run
from minitrain.measure.parts import Parts
from minitrain.monitoring.hardware import find_sensor
from minitrain.monitoring.json_lines import JsonLines, metrics_file, metrics_files
from minitrain.monitoring.loggers import TensorBoard, Thinned, Wandb
from minitrain.monitoring.meter import Meter
from minitrain.monitoring.prometheus import Prometheus
from minitrain.monitoring.step_trace import StepTracer
from minitrain.training.report import Sink

T = TypeVar("T")
LOGGERS = {"tensorboard": TensorBoard, "wandb": Wandb}


def metered(run: Run, interval: float) -> Meter:
    """Measures this rank, on its group's clock; saves are planned every `interval` seconds."""
    group = run.group
    parts = Parts(group.now if group else time.perf_counter)
    return Meter(
        parts,
        group.trace if group else None,
        run.device,
        find_sensor(run.device),
        run.job.folder,
        interval,
        lambda: run.saver.stall_seconds,
    )


def sinks(run: Run) -> list[Sink]:
    """Each rank has a file and an endpoint of its own; rank 0 speaks to the loggers."""
    told, folder, rank = run.job.told, run.job.folder, run.ranks.rank
    found: list[Sink] = [JsonLines(metrics_file(folder, rank), run.state.step)]
    if told.metrics_port is not None:
        port = told.metrics_port + rank if told.metrics_port else 0
        endpoint = Prometheus(folder.resolve().name, rank, port, told.metrics_host)
        print(f"metrics http://{told.metrics_host}:{endpoint.port}/metrics", flush=True)
        found.append(endpoint)
    if run.speaks:
        found += [Thinned(LOGGERS[name](folder)) for name in told.log_to]
        for gone, path in metrics_files(folder).items():
            if gone >= run.ranks.size:  # the run had more ranks before
                path.unlink()
    return found


def tracers(run: Run, meter: Meter) -> list[StepTracer]:
    step = run.job.told.trace_step
    return [] if step is None else [StepTracer(run.job.folder, step, meter, run.group)]


def during(parts: Parts, name: str, function: Callable[..., T]) -> Callable[..., T]:
    """The function, its time a part of its own."""

    def timed(*arguments: object) -> T:
        with parts.during(name):
            return function(*arguments)

    return timed
