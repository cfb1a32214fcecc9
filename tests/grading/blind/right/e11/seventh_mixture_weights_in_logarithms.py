# exercise: mixture_weights
# differs: in logarithms, sorted by the order in which sources reach their caps; one pass, no set
# of free sources
import math


def mixture_weights(sizes, temperature, budget, most_passes=4.0) -> list:
    total = sum(sizes)
    if budget > total * most_passes:
        raise ValueError("the budget is more than all sources give in so many passes")
    exponent = 0.0 if math.isinf(temperature) else 1 / temperature
    logs = [math.log(size) if size else 0.0 for size in sizes]
    # cap over weight is n^(1 - 1/T): the smallest is capped first
    filled = [i for i, size in enumerate(sizes) if size]
    queue = sorted(filled, key=lambda i: (1 - exponent) * logs[i])
    result = [0.0] * len(sizes)
    left = 1.0
    while queue:
        peak = max(logs[i] for i in queue)
        weights = [math.exp(exponent * (logs[i] - peak)) for i in queue]
        whole = math.fsum(weights)
        cap = most_passes * sizes[queue[0]] / budget
        if left * weights[0] / whole <= cap:
            for i, weight in zip(queue, weights):
                result[i] = left * weight / whole
            break
        result[queue.pop(0)] = cap
        left = max(0.0, 1 - math.fsum(result))
    return result
