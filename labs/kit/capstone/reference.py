"""The course's own submissions to the tracks of lab e15."""

from __future__ import annotations


def held_bytes(stack, parameters, pieces, saved, rows):
    """Bytes of one rank by category, for a stack of techniques."""
    number = 2 if stack.bf16 else 4
    weights = 4 * parameters / (stack.ranks if stack.zero == 3 else 1)
    gradients = number * parameters / (stack.ranks if stack.zero >= 2 else 1)
    state = 0
    for size in pieces:
        blocks = -(-size // 256)
        small = stack.adam_bits == 32 or size < 4096
        state += 4 + (8 * size if small else blocks * (2 * 256 + 2 * 4))
    return {
        "parameters": weights,
        "gradients": gradients,
        "optimizer": 0 if stack.offload else state,
        "activations": saved(rows // stack.ranks, number, stack.recompute),
    }


def plan(case):
    """The fastest of twelve plans, the best by a closed form."""
    from minitrain.planning.closed_forms import step_parts

    fabric = case.fabric

    def quick(plan):
        run, model = case.run(plan), case.model
        layers, extra = run.microbatches * model.layers / plan.pp, 0.0
        if plan.cp > 1:  # keys and values go around in each layer
            nbytes = 4 * plan.cp * run.local_tokens * model.kv_heads * model.head_size
            extra += layers * fabric.seconds("all_gather", nbytes, plan.cp, plan.tp)
        if plan.ep > 1:  # tokens go to their experts and come back
            nbytes = 2 * run.local_tokens * model.hidden * model.experts_per_token
            extra += 4 * layers * fabric.seconds("all_to_all", nbytes, plan.ep, plan.tp)
        return sum(step_parts(run, fabric).values()) + extra

    fitting = [plan for plan in case.plans if case.fits(plan)]
    return min(sorted(fitting, key=quick)[:12], key=case.seconds)


def lower_bound(case):
    """Seconds that no schedule of this case can beat."""
    m, live, send, seconds = case.microbatches, case.live, case.send, case.seconds
    bounds = []
    for rank, (f, b, w) in enumerate(seconds):
        before, after = seconds[:rank], seconds[rank + 1 :]
        start = sum(f + send for f, _, _ in before)
        back = sum(b + send for _, b, _ in before) + seconds[0][2]
        life = f + b + w + sum(f + b + 2 * send for f, b, _ in after)
        bounds.append(start + m * (f + b + w))
        bounds.append(start + m * (f + b) + max(0, m - live) * w + back)
        bounds.append(start + m * life / live)
    return max(bounds)


def schedule(case):
    """Greedy: in order of time, each rank runs what it can, a backward before a forward."""
    p, m = len(case.seconds), case.microbatches
    free, alive, orders = [0.0] * p, [0] * p, [[] for _ in range(p)]
    ready = {(0, "F", i): 0.0 for i in range(m)}  # when its input is there

    def start(operation):
        rank, kind, i = operation
        return max(free[rank], ready[operation]), "BFW".index(kind), i

    while ready:
        can = [one for one in ready if one[1] != "F" or alive[one[0]] < case.live]
        rank, kind, i = chosen = min(can, key=start)
        end = free[rank] = start(chosen)[0] + case.seconds[rank]["FBW".index(kind)]
        del ready[chosen]
        orders[rank].append((kind, i))
        alive[rank] += (kind == "F") - (kind == "W")
        if kind == "F" and rank < p - 1:
            ready[rank + 1, "F", i] = end + case.send
        elif kind == "F":
            ready[rank, "B", i] = end
        elif kind == "B":
            ready[rank, "W", i] = end
            if rank > 0:
                ready[rank - 1, "B", i] = end + case.send
    return orders


def policy(view):
    """(seconds to the next save, swap now?, spare nodes)."""
    from math import ceil, sqrt

    between = (2 * view.expected_between + view.now) / (2 + len(view.failures))
    lost = view.slow_for * (1 - 1 / view.factor)  # so far, to the slow node
    rate = view.node_share / between + view.swaps / (view.now + 24 * 3600)
    away = rate * view.repair * 3600  # nodes in repair, on average
    save_in = sqrt(2 * view.save * between)
    return save_in, lost >= view.swap, ceil(away + 2 * sqrt(away)) + 2
