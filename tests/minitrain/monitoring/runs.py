"""A run's folder as `train` leaves it, without training: samples of some ranks, as one likes."""

from __future__ import annotations

from pathlib import Path

from minitrain.monitoring.json_lines import JsonLines, metrics_file

BEGAN = 1_000_000.0


def sample(step: int, seconds: float = 1.0, **more) -> dict:
    return {
        "time": BEGAN + seconds * step,
        "step": step,
        "total_steps": 100,
        "tokens": 1000 * step,
        "seconds": seconds * (step - 1),
        "loss": 1.0 + 3.0 / step,
        "floor": 0.9,
        "grad_norm": 0.5,
        "tokens_per_second": 1000 / seconds,
        "step_seconds": seconds,
        "compute_seconds": 0.9 * seconds,
        "data_seconds": 0.0,
        "exposed_seconds": 0.05 * seconds,
        "sent_bytes": 4_000_000,
        "mfu": 0.4,
        "memory_bytes": 3 * 2**28,
        "gpu_is_emulated": 1,
        "gpu_power_watts": 637.0,
        "gpu_temperature_celsius": 70.0,
        "parts": {"forward": 0.3 * seconds, "backward": 0.6 * seconds, "data": 0.1 * seconds},
        **more,
    }


def write(folder: Path, samples: list[dict], rank: int = 0, ended: str | None = None) -> Path:
    log = JsonLines(metrics_file(folder, rank), 10**9)
    for each in samples:
        log(each)
    if ended:
        log({"time": samples[-1]["time"], "ended": ended})
    log.close()
    return log.path
