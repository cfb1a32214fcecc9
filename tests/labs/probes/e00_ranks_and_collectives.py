"""The probes of lab e00: what runs in the sandbox, beside a submission on collectives.

Nothing here knows what is expected: the verdicts, in test_e00_ranks_and_collectives.py, are made from
what comes back.
"""

from __future__ import annotations

from .in_turn import in_turn


def in_groups(group, f, calls):
    """calls: (ranks, arguments of each); the first `ranks` ranks are the group of that call.

    What `in_turn` says of this rank's calls; each is marked for the relay.
    """
    mine = [(ranks, given[group.rank]) for ranks, given in calls if group.rank < ranks]
    groups = {ranks: group.subgroup(range(ranks)) for ranks in sorted({r for r, _ in mine})}
    in_order = iter(mine)

    def call(*given):
        ranks, _ = next(in_order)
        group.trace.mark("call")
        out = f(groups[ranks], *given)
        group.trace.mark(("over", "call"))
        return out

    return in_turn(call, [given for _, given in mine])
