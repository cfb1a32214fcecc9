"""Random numbers in a tensor-parallel region: each rank draws its own, and outside all agree.

Inside, ranks hold different heads, features or tokens: the same dropout mask on all of them would
drop head 0 wherever it drops head N/2. Outside, they hold copies, and the masks must be equal.

    outside   ─ draw seed ─────────────────────────── goes on, one draw later, alike on all ranks
    inside              └ seed·N + rank ─ mask ─┘

What happens inside depends on the state outside and the rank alone: there is nothing to save, and a
recomputation that puts the state outside back gets the same masks. Cf. Megatron-LM, which keeps a
second stream (arXiv 1909.08053, appendix B.2). Lab: e02b_tensor_parallel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from minitrain.parallel.group import Group


@contextmanager
def tensor_rng(group: Group) -> Iterator[None]:
    """In here each rank's numbers are its own; before and after, the ranks agree if they did."""
    seed = int(torch.randint(2**40, ()))
    devices = [group.device] if group.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed * group.size + group.rank)
        yield
