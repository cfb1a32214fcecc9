"""Columns of the labs' experiments that hold clock readings: no two runs agree in all digits.

All others (bytes, messages, losses of a seeded run, the emulated seconds of a planned step) are the
same for every honest run, and do not show where a table comes from.
"""

from __future__ import annotations

from collections.abc import Sequence

STEP = ("backward_seconds", "exposed_seconds", "hidden_seconds", "step_seconds")

CLOCKED: dict[str, dict[str, Sequence[str]]] = {
    "e00_ranks_and_collectives": {
        "sweep": ("seconds",),
        "prediction": ("measured", "predicted"),  # the latter from the fit to one's own sweep
        "ring_or_doubling": ("doubling_seconds", "ring_seconds"),
    },
    "e01_baseline": {"training": ("seconds",), "throughput": ("mfu", "tokens_per_second")},
    "e02_data_parallel": {"measured": STEP, "overlap": STEP, "scaling": STEP},
    "e03_zero": {"steps": ("spread_seconds", "step_seconds")},
    "e04_mixed_precision": {"formats": ("tokens_per_second",)},
    "e05_activation_memory": {"tradeoff": ("step_seconds",)},
    "e06_lora": {
        "methods": ("train_seconds",),
        "mixed": ("loop_seconds", "mixed_seconds"),
    },
    "e08_quantization": {"speed": ("seconds",)},
    "e09_inference": {
        "roofline": ("seconds",),
        "throughput": ("seconds", "first_50", "last_50"),
        "chunks": ("wait", "gap_50"),
    },
    "e09b_speculative_decoding": {
        "drafts": ("draft_cost", "speed_up"),
        "medusa": ("speed_up",),
        "passes": ("draft_seconds", "seconds"),
    },
    "e11_data_pipeline": {"loader": ("tokens_per_second",)},
    "e14_architectures": {"equal_budget": ("decode_short", "decode_long")},
    "e12_reliability": {
        "stall": ("stall_seconds",),
        "stragglers": ("compute_ms", "step_ms"),
    },
}
