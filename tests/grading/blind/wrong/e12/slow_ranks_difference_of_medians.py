# exercise: slow_ranks
# says: take each step's difference first
# median of "reached" minus median of "began" is the compute time of the ONE step in the middle,
# not the median of the compute times: a pause just there accuses a healthy rank.

import torch


def slow_ranks(times: torch.Tensor, factor: float = 1.1) -> list[int]:
    began, reached, _ = times.median(dim=1).values.unbind(-1)
    compute = reached - began
    m = compute.median()
    s = 1.4826 * (compute - m).abs().median()
    limit = max(factor * m.item(), (m + 5 * s).item())
    return [rank for rank, c in enumerate(compute.tolist()) if c > limit]
