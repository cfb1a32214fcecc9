"""The probes of lab e09b: what runs in the sandbox, beside a submission on speculation.

Nothing here knows what is expected: the verdicts, in test_e09b_speculative_decoding.py, are made
from what comes back. Calls come several in a row, each of another size.
"""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .in_turn import fresh, in_turn


class Count(TorchDispatchMode):
    """How many operations were seen."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, op, types, args=(), options=None):
        self.calls += 1
        return op(*args, **(options or {}))


class Pick:
    """Draws by the number `level` from rows of weights, and notes the rows."""

    def __init__(self, level):
        self.level, self.rows, self.calls = level, [], 0

    def __call__(self, weights):
        if not isinstance(weights, torch.Tensor) or weights.dim() != 2:
            kind = tuple(weights.shape) if isinstance(weights, torch.Tensor) else type(weights)
            raise ValueError(f"pick got weights of {kind}: it takes rows of weights, (N, V)")
        self.calls += 1
        rows = weights.detach().double()
        self.rows.extend(fresh(rows))
        sums = rows.clamp(min=0).nan_to_num().cumsum(dim=1)
        places = torch.searchsorted(sums, self.level * sums[:, -1:], right=True)[:, 0]
        return places.clamp(max=weights.shape[1] - 1)


def verified(f, calls):
    """calls: (p, q, drafts, coins, level). Beside each result the rows that were drawn from, and
    how many operations it took."""
    notes = []

    def one(p, q, drafts, coins, level):
        pick, count = Pick(level), Count()
        with count:
            out = f(p, q, drafts, coins, pick)
        notes.append({"rows": pick.rows, "picks": pick.calls, "operations": count.calls})
        return out

    return {"calls": in_turn(one, calls), "notes": notes}


def learned(f, calls):
    """calls: (hidden, inner, outer, tokens, …). The losses, all alive before the first backward,
    and what each argument's gradient became."""
    live = []
    for hidden, inner, outer, tokens, *more in calls:
        given = [tensor.clone().requires_grad_() for tensor in (hidden, inner, outer)]
        before = [tensor.detach().clone() for tensor in (*given, tokens)]
        own = tokens.clone()
        loss = f(*given, own, *more)
        after = [tensor.detach().clone() for tensor in (*given, own)]
        live.append((loss, given, all(map(torch.equal, before, after))))
    found = []
    for loss, given, unchanged in live:
        can = isinstance(loss, torch.Tensor) and loss.requires_grad and loss.numel() == 1
        if can:
            loss.backward()
        found.append(
            {
                "loss": loss.detach() if isinstance(loss, torch.Tensor) else loss,
                "backward": can,
                "gradients": [None if t.grad is None else t.grad.clone() for t in given],
                "unchanged": unchanged,
            }
        )
    return found
