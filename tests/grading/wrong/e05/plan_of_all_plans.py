# exercise: optimal_plan
# says: took too long


def optimal_plan(layers, budget_bytes):
    """Every plan there is, the cheapest of those that fit."""
    best = None
    for cost, plan in every(layers, 0, 0, budget_bytes):
        if best is None or cost < best[0]:
            best = cost, plan
    if best is None:
        raise ValueError("no plan fits")
    return best[1]


def every(layers, start, held, budget):
    if start == len(layers):
        yield 0, []
    for stop in range(start + 1, len(layers) + 1):
        saved = sum(layer.saved_bytes for layer in layers[start:stop])
        again = sum(layer.cost for layer in layers[start:stop])
        if held + saved > budget:
            break
        for cost, rest in every(layers, stop, held + layers[start].input_bytes, budget):
            yield cost + again, [(start, stop, "full"), *rest]
        if stop == start + 1:
            for cost, rest in every(layers, stop, held + saved, budget):
                yield cost, [(start, stop, "none"), *rest]
