"""Introduction, measurements and sinks of a run: files, TensorBoard, wandb, Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from minitrain.apps.train.mesh_check import FLAGS
from minitrain.apps.train.setup import Run
from minitrain.apps.train.wiring import OnMesh
from minitrain.measure.parameters import active_parameter_count, parameter_count
from minitrain.measure.parts import Parts
from minitrain.model.config import ModelConfig
from minitrain.monitoring.hardware import find_sensor
from minitrain.monitoring.json_lines import JsonLines, metrics_file, metrics_files
from minitrain.monitoring.loggers import Prometheus, TensorBoard, Thinned, Wandb
from minitrain.monitoring.meter import Meter
from minitrain.parallel.pipeline.timeline import bubble_fraction
from minitrain.training.report import Sink

T = TypeVar("T")
LOGGERS = {"tensorboard": TensorBoard, "wandb": Wandb}


def introduction(run: Run) -> str:
    options, rows = run.options, run.rows
    source = f"corpus '{options.domain}'" if options.data == "corpus" else options.data
    places = len(rows.training) * options.length
    devices = f"{run.ranks.size} x {run.device}" if run.ranks.size > 1 else f"{run.device}"
    lines = [
        f"model   {options.preset}: {parameters_text(run.config)}, "
        f"{options.dtype} on {devices}, whose matmuls reach {run.peak / 1e9:,.0f} GFLOP/s",
        f"text    {source}: {rows.tokens:,} tokens of {run.config.vocab_size}, "
        f"in rows of {options.length}, {rows.tokens / places:.0%} full",
        f"floor   {rows.floor:.4f} nats per token" if rows.floor else "floor   not known",
        *([f"mesh    {mesh_text(run.wiring)}"] if isinstance(run.wiring, OnMesh) else []),
        f"folder  {run.job.folder}",
    ]
    if run.state.step:
        lines.append(f"resumed at step {run.state.step:,}, {run.state.seconds:.0f} s of training")
    return "\n".join(lines)


def mesh_text(wiring: OnMesh) -> str:
    """'dp 2 x tp 2 x pp 2; 1f1b over 4 microbatches, its bubble 20% of a step'."""
    mesh, schedule = wiring.parts.axes.mesh, wiring.parts.schedule
    axes = " x ".join(f"{axis} {mesh[axis]}" for axis in FLAGS if mesh[axis] > 1) or "one rank"
    if mesh["pp"] == 1:
        return axes
    idle = bubble_fraction(schedule)  # relative to the work
    return (
        f"{axes}; {schedule.name} over {schedule.microbatches} microbatches, its bubble "
        f"{idle / (1 + idle):.0%} of a step"
    )


def parameters_text(config: ModelConfig) -> str:
    """All parameters, and for a mixture of experts the active ones per token."""
    text = f"{parameter_count(config):,} parameters"
    return f"{text} ({active_parameter_count(config):,} active)" if config.experts else text


def metered(run: Run, interval: float) -> Meter:
    """This rank's meter, on its group's clock; saves are planned every `interval` seconds."""
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
    """A file and an endpoint for each rank; rank 0 also reports to the loggers."""
    wanted, folder, rank = run.job.sinks, run.job.folder, run.ranks.rank
    found: list[Sink] = [JsonLines(metrics_file(folder, rank), run.state.step)]
    if wanted.metrics_port is not None:
        port = wanted.metrics_port + rank if wanted.metrics_port else 0
        endpoint = Prometheus(folder.resolve().name, rank, port, wanted.metrics_host)
        print(f"metrics http://{wanted.metrics_host}:{endpoint.port}/metrics", flush=True)
        found.append(endpoint)
    if run.speaks:
        found += [Thinned(LOGGERS[name](folder)) for name in wanted.log_to or ()]
        for gone, path in metrics_files(folder).items():
            if gone >= run.ranks.size:  # left from a session with more ranks
                path.unlink()
    return found


def during(parts: Parts, name: str, function: Callable[..., T]) -> Callable[..., T]:
    """Wraps the function so that its time is recorded as a separate part."""

    def timed(*arguments: object) -> T:
        with parts.during(name):
            return function(*arguments)

    return timed
