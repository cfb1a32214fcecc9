"""Live monitoring of a run: one stream of samples for files, endpoints and people.

train ─▶ Reporter ─▶ sample {"step": 412, "loss": 1.3, …} ─▶ json_lines, loggers, prometheus
            ▲
          meter      parts of the step, bytes, memory; hardware: power, heat
metrics.jsonl ─▶ apps/watch   a page at 1 Hz, or the same in a notebook
              └▶ alerts       rules in Python and in PromQL, from one table
step_trace    one step for Perfetto          power_swing   a job's power as the grid sees it
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Meter": "meter",
    "JsonLines": "json_lines",
    "Alerts": "alerts",
    "StepTracer": "step_trace",
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
