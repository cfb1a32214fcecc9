"""FLOPs of a run's step: what the model needs, and what the chips do.

A token costs 2 FLOPs per weight that multiplies it forward, 4 backward, and attention's scores
4 h s forward per layer, counted in full though causal masking hides half (as Narayanan et al. 2021,
eq. 3, and PaLM, app. B). For GPT (f = 4h) and one step of B sequences that is the papers'
72 B s l h² (1 + s/(6h) + V/(12 l h)). `measure/flops.py` and `parameters.py` have the formulas.

MFU counts these *model* FLOPs, HFU adds what recomputation repeats. The "52% of peak" of the 2021
Megatron table is an HFU: full recomputation repeats the forward, 96 in place of 72.
"""

from __future__ import annotations

from minitrain.measure import flops
from minitrain.planning.run import Run


def model_flops(run: Run) -> int:
    """Model FLOPs of one step of the whole batch: forward and backward, however it is computed."""
    return flops.model_flops(run.model, run.global_batch, run.seq)


def hardware_flops(run: Run) -> int:
    """With what is done again. `selective` repeats attention's scores, unless they are fused: that
    keeps none, and its backward always makes them again, which is not counted."""
    fused = run.plan.recompute == "selective" and run.plan.modern
    recompute = "none" if fused else run.plan.recompute
    return flops.hardware_flops(run.model, run.global_batch, run.seq, recompute)
