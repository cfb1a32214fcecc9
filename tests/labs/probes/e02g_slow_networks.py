"""The probes of lab e02g: what runs in the sandbox, beside a submission.

Nothing here knows what is expected: the verdicts, in test_e02g_slow_networks.py, are made from what
comes back.
"""

from __future__ import annotations

import torch

from .in_turn import fresh, in_turn

COMPRESSORS = {
    "largest": lambda v: torch.where(v.abs() >= v.abs().topk(3).values[-1], v, 0),
    "signs": lambda v: v.abs().mean() * v.sign(),
    "everything": lambda v: v.clone(),
    "nothing": torch.zeros_like,
    "halves": lambda v: v / 2,
}
RULES = {
    "whole": lambda staleness: 1.0,
    "divided": lambda staleness: 1 / max(1, staleness),
    "quadratic": lambda staleness: 1 / (1 + staleness) ** 2,
}


def fed_back(f, steps):
    """Steps of one memory, and of another beside it: (which, key, vector, compressor)."""
    memories, found = [f(), f()], []
    for which, key, vector, name in steps:
        given, seen = vector.clone(), []

        def compress(wanted, name=name, seen=seen):
            seen.append(wanted.clone())
            return COMPRESSORS[name](wanted)

        out = memories[which](key, given, compress)
        residual = memories[which].residuals.get(key)
        row = {"out": out.clone(), "seen": seen, "given": given, "residual": fresh(residual)}
        found.append(row)
        out.fill_(1e6)  # it is the caller's
        row["kept"] = fresh(memories[which].residuals.get(key))
    return found


def on_ranks(group, f, calls):
    """calls[rank]: its arguments of each call, all on one group."""

    def marked(*given):
        group.trace.mark("call")
        out = f(group, *given)
        group.trace.mark(("over", "call"))
        return out

    return in_turn(marked, calls[group.rank])


def outer_rounds(group, f, start, arrivals, settings):
    """arrivals[rank]: where it arrives each round; the three vectors after it."""
    common, velocity = start.clone(), torch.zeros_like(start)
    found = []
    for arrived in arrivals[group.rank]:
        own = arrived.clone()
        places = [t.data_ptr() for t in (common, own, velocity)]
        group.trace.mark("call")
        f(group, common, own, velocity, **settings)
        group.trace.mark(("over", "call"))
        row = {"common": common.clone(), "own": own.clone(), "velocity": velocity.clone()}
        own.fill_(7.0)  # the next local steps move it
        row["apart"] = torch.equal(common, row["common"])
        row["placed"] = places == [t.data_ptr() for t in (common, own, velocity)]
        found.append(row)
    return found


def served(f, weights, lr, rule, events):
    """("pull", worker) and ("push", worker, gradient) in turn; of each what is seen after it."""
    server = f(weights, lr) if rule is None else f(weights, lr, RULES[rule])
    pulled, found, live = {}, [], []
    for kind, worker, *gradient in events:
        if kind == "pull":
            copy, version = server.pull()
            pulled[worker] = version
            live.append((copy, copy.clone()))
            out = version
        else:
            given = gradient[0].clone()
            out = server.push(given, pulled[worker])
            assert_same = torch.equal(given, gradient[0])
            found.append({"kind": "gradient", "same": assert_same})
        row = {"kind": kind, "out": out, "version": server.version}
        row["copy"] = live[-1][1].clone() if kind == "pull" else None
        found.append({**row, "weights": server.weights.clone()})
    moved = [not torch.equal(copy, first) for copy, first in live]
    return {"steps": found, "moved": any(moved), "own": bool(torch.equal(weights, fresh(weights)))}


class Tapped:
    """The group, with a copy of everything that is summed on it."""

    def __init__(self, group):
        self.group, self.heard = group, []

    def all_reduce(self, tensor, *options, **named):
        self.heard.append(tensor.clone())
        return self.group.all_reduce(tensor, *options, **named)

    def __getattr__(self, name):
        return getattr(self.group, name)


def summed(group, f, calls):
    """calls[rank]: (vector, seeds, turn, bits); with what each rank sent."""
    found = []
    for given in calls[group.rank]:
        tapped, mine = Tapped(group), fresh(given)
        group.trace.mark("call")
        out = f(tapped, *mine)
        group.trace.mark(("over", "call"))
        found.append({"out": out, "heard": tapped.heard, "given": mine})
    return found


def encoded(f, calls):
    """(vector, budget) -> a message, by one compressor."""
    compressor = f()
    return in_turn(lambda *call: compressor.encode(*call), calls)


def decoded(f, calls):
    """(message, length) -> a vector, by another one."""
    compressor = f()
    return in_turn(lambda *call: compressor.decode(*call), calls)
