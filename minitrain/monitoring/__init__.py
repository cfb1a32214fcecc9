"""Live monitoring of a run: one stream of samples for files, endpoints and people.

train ─▶ Reporter ─▶ sample {"step": 412, "loss": 1.3, …} ─▶ json_lines, loggers
            ▲
          meter      parts of the step, bytes, memory; hardware: power, heat
metrics.jsonl ─▶ apps/watch   a page at 1 Hz, or the same in a notebook
              └▶ alerts       rules in Python and in PromQL, from one table
step_trace    one step for Perfetto          power_swing   a job's power as the grid sees it
"""

from minitrain.doors import doors

__getattr__ = doors(
    __name__,
    {
        "Meter": "meter",
        "JsonLines": "json_lines",
        "Alerts": "alerts",
        "StepTracer": "step_trace",
    },
)
