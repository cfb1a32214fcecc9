"""The probes of lab e00: what runs in the sandbox, beside a submission on collectives.

Nothing here knows what is expected: the verdicts, in test_e00_ranks_and_collectives.py, are made from
what comes back.
"""

from __future__ import annotations

import torch


def on_tensor(group, f, tensors, *rest):
    mine = tensors[group.rank].clone()
    out = f(group, mine, *rest)
    kept = bool(torch.equal(mine, tensors[group.rank]))
    return {"out": out, "kept": kept, "aliased": shares_memory(out, mine)}


def on_chunks(group, f, chunks):
    return f(group, [chunk.clone() for chunk in chunks[group.rank]])


def shares_memory(out, mine):
    if not isinstance(out, torch.Tensor) or out.numel() == 0 or mine.numel() == 0:
        return False
    return out.untyped_storage().data_ptr() == mine.untyped_storage().data_ptr()
