# exercise: optimal_plan
# says: This call alone is right

KNOWN = {}


def optimal_plan(layers, budget_bytes):
    """As from the back, but what is known outlives the call, and is not the next chain's."""

    def rest(start, held):
        if start == len(layers):
            return 0, ()
        if (start, held) not in KNOWN:
            found, saved, cost = [], 0, 0
            for stop in range(start + 1, len(layers) + 1):
                saved, cost = saved + layers[stop - 1].saved_bytes, cost + layers[stop - 1].cost
                if held + saved > budget_bytes:
                    break
                ways = [("full", cost, layers[start].input_bytes)]
                ways += [("none", 0, saved)] if stop == start + 1 else []
                for mode, price, left in ways:
                    tail = rest(stop, held + left)
                    if tail:
                        found.append((price + tail[0], ((start, stop, mode), *tail[1])))
            KNOWN[start, held] = min(found, key=lambda pair: pair[0]) if found else None
        return KNOWN[start, held]

    best = rest(0, 0)
    if best is None:
        raise ValueError(f"{budget_bytes} bytes are too few")
    return list(best[1])
