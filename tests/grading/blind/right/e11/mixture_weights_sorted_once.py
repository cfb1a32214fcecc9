# right: no rounds: sources sorted by how far they lie above their caps (in logarithms), capped from the front until the first that fits; the rest is shared by a softmax of log n / T
import math


def mixture_weights(sizes, temperature, budget, most_passes=4.0) -> list:
    if not most_passes * sum(sizes) >= budget:
        raise ValueError(
            f"{sum(sizes)} tokens, read {most_passes} times at the most, are fewer than {budget}"
        )
    weights = [0.0] * len(sizes)
    logs = {i: math.log(n) / temperature for i, n in enumerate(sizes) if n > 0}
    queue = sorted(logs, key=lambda i: logs[i] - math.log(sizes[i]), reverse=True)
    rest = 1.0
    while queue:
        top = max(logs[i] for i in queue)
        total = math.fsum(math.exp(logs[i] - top) for i in queue)
        head = queue[0]
        cap = most_passes * sizes[head] / budget
        if len(queue) > 1 and rest * math.exp(logs[head] - top) / total > cap:
            weights[head] = cap
            rest = max(rest - cap, 0.0)
            queue.pop(0)
            continue
        for i in queue:
            weights[i] = rest * math.exp(logs[i] - top) / total
        break
    return weights
