# exercise: mixture_weights
# one walk over the sources in the order in which they can reach their caps (smallest first for T >
# 1, largest first for T < 1), in logarithms
import math


def mixture_weights(sizes, temperature, budget, most_passes=4.0) -> list:
    sizes = [int(n) for n in sizes]
    if budget > most_passes * sum(sizes):
        raise ValueError("the budget is larger than all sources, read as often as allowed")
    # cap over pull is proportional to n^(1 - 1/T)
    order = sorted(
        (i for i, n in enumerate(sizes) if n),
        key=sizes.__getitem__,
        reverse=temperature < 1,
    )
    shares, left = [0.0] * len(sizes), 1.0
    for place, source in enumerate(order):
        rest = order[place:]
        top = max(sizes[i] for i in rest)
        pulls = [math.exp(math.log(sizes[i] / top) / temperature) for i in rest]
        rate = left / math.fsum(pulls)
        cap = most_passes * sizes[source] / budget
        if rate * pulls[0] <= cap:
            for i, pull in zip(rest, pulls):
                shares[i] = rate * pull
            break
        shares[source] = cap
        left = max(0.0, left - cap)
    return shares
