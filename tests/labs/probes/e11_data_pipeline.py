"""The probes of lab e11: what runs in the sandbox, beside a submission on data.

Nothing here knows what is expected: the verdicts, in test_e11_data_pipeline.py, are made from what
comes back.
"""

from __future__ import annotations

import json
import random
import sys
import tracemalloc

import numpy as np
import torch

MARK = 1 << 20
READY_MADE = ("networkx", "scipy", "datasketch", "sklearn")


class Once:
    """An iterable that can be gone through once; `begun` counts who tried."""

    def __init__(self, items):
        self.left, self.begun = (tuple(item) for item in items), 0

    def __iter__(self):
        self.begun += 1
        return self.left


def own(value):
    """The same, with memory of its own; a tuple of the grader's stays one."""
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return value.copy() if isinstance(value, np.ndarray) else value.clone()
    if isinstance(value, (list, tuple)):
        return type(value)(map(own, value))
    return value


def plain(value):
    """As it may be sent: an array with its dtype, whatever else as its words."""
    if isinstance(value, np.ndarray):
        told = {"dtype": str(value.dtype), "shape": list(value.shape)}
        return {**told, "values": value.tolist()} if value.dtype.kind in "iufb" else told
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [plain(item) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return f"a {type(value).__name__}"


def arrays(value):
    if isinstance(value, torch.Tensor):
        return [value.detach().numpy()]
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, (list, tuple)):
        return [array for item in value for array in arrays(item)]
    return []


def in_a_row(f, calls):
    """f on each tuple of arguments, as probes/in_turn.py has it, of arrays and lists too."""
    live = []
    for call in calls:
        given = own(call)
        out = f(*given)
        live.append((given, plain(given), out, plain(out)))
    return [
        {
            "out": first,
            "later": plain(out),
            "given": after,
            "shares": any(np.may_share_memory(a, b) for a in arrays(out) for b in arrays(given)),
        }
        for given, after, out, first in live
    ]


class Handled(np.ndarray):
    """An array whose ufuncs add how many numbers they handle to `STEPS`, as do those made of it."""

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        bare = [x.view(np.ndarray) if isinstance(x, Handled) else x for x in inputs]
        if out is not None:
            options["out"] = tuple(x.view(np.ndarray) if isinstance(x, Handled) else x for x in out)
        result = getattr(ufunc, method)(*bare, **options)
        STEPS.append(max(np.size(x) for x in (*bare, result)))
        if out is not None:
            return out[0]
        return result.view(Handled) if isinstance(result, np.ndarray) else result


STEPS = []
SORTS = ("argsort", "sort", "lexsort", "sorted")


def in_steps(f, *given):
    """What it gives, and how many lines it ran and numbers it handled or sorted: no clock is asked."""
    STEPS.clear()
    size = max([len(x) for x in given if isinstance(x, np.ndarray)], default=1)

    def trace(*event):
        STEPS.append(1)
        return trace

    def sorts(frame, event, called):
        if event == "c_call" and called.__name__ in SORTS:
            STEPS.append(size)

    handled = [x.view(Handled) if isinstance(x, np.ndarray) else x for x in given]
    before = sys.gettrace(), sys.getprofile()
    sys.settrace(trace)
    sys.setprofile(sorts)
    try:
        out = f(*handled)
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
    return plain(out), sum(STEPS)


def cost_of(f, calls):
    """Of each call the result and the steps."""
    found = []
    for call in calls:
        out, steps = in_steps(f, *own(call))
        found.append({"steps": steps, "out": out})
    return found


def peak_of(f, calls):
    """Of each call the result, and the most bytes that Python and NumPy held beyond its arguments.

    Memory that is held before the call must still be traced after it, or the meter was touched.
    """
    found = []
    for call in calls:
        given = own(call)
        tracemalloc.start()
        held = bytearray(MARK)
        out = f(*given)
        now, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        found.append({"peak": peak - MARK, "metered": now >= len(held), "out": plain(out)})
    return found


def as_union(f, calls):
    """calls: (pairs, count). The pairs come once; libraries of graphs are not here."""
    ready = [name for name in READY_MADE if name in sys.modules]
    for name in READY_MADE:
        sys.modules[name] = None
    found = []
    for pairs, count in calls:
        once = Once(pairs)
        out, steps = in_steps(f, once, count)
        found.append({"out": out, "begun": once.begun, "steps": steps})
    return {"calls": found, "ready": ready}


def union_of_all(f, count):
    """The peak, as above, of a call with every pair of so many; a pair is made as it is read."""
    (found,) = peak_of(f, [(((i, j) for j in range(count) for i in range(j)), count)])
    return found


def refused(f, calls):
    """The name of the error that each call ends with, or what it gave."""
    found = []
    for call in calls:
        try:
            found.append({"out": plain(f(*call)), "error": ""})
        except Exception as error:
            found.append({"out": None, "error": type(error).__name__})
    return found


def epochs(f, calls):
    """calls: (arguments, how many epochs). Every rank's steps, epoch by epoch."""
    found = []
    for arguments, ranks, count in calls:
        rows, batch, seed = arguments
        streams = [f(rows, batch, rank, ranks, seed) for rank in range(ranks)]
        streams = [f(rows, batch, seed=seed)] if ranks == 1 else streams
        found.append([[steps_of(s) for s in streams] for _ in range(count)])
    return found


def steps_of(stream):
    return [plain(list(step)) for step in stream]


def alone(f, arguments, seeds):
    """One epoch, with the generators of the process at other places, and whether it moved them."""
    found = []
    for seed in seeds:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        before = generators()
        stream = f(*arguments)
        first = steps_of(stream)
        found.append({"steps": first, "moved": generators() != before})
    return found


def generators():
    return [
        str(random.getstate()),
        str(np.random.get_state()[1].tolist()),
        torch.get_rng_state().tolist(),
    ]


def stopped(f, cases):
    """cases: (rows, batch, ranks, seed, stop). Rank 0's state after so many steps, over epochs, and
    three iterations of every rank after it."""
    return [one_stopped(f, *case) for case in cases]


def one_stopped(f, rows, batch, ranks, seed, stop):
    streams = [f(rows, batch, rank, ranks, seed) for rank in range(ranks)]
    running = [iter(stream) for stream in streams]
    for _ in range(stop):
        for rank, stream in enumerate(streams):
            if next(running[rank], None) is None:  # the epoch is over
                running[rank] = iter(stream)
                next(running[rank], None)
    states = [stream.state() for stream in streams]
    kept = json.dumps(states[0])
    alike = all(json.dumps(state) == kept for state in states)
    # on goes the run: a state that was taken stays as it was
    rest = [[steps_of(stream) for stream in streams] for _ in range(3)]
    return {"state": kept, "alike": alike, "kept": json.dumps(states[0]) == kept, "rest": rest}


def gone_on(f, cases):
    """cases: (rows, batch, ranks, seed, epochs, state as JSON). The steps of every rank."""
    found = []
    for rows, batch, ranks, seed, count, state in cases:
        streams = [f(rows, batch, rank, ranks, seed) for rank in range(ranks)]
        for stream in streams:
            stream.resume(json.loads(state))
        found.append([[steps_of(stream) for stream in streams] for _ in range(count)])
    return found
