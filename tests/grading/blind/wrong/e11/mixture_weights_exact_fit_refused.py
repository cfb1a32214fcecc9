# exercise: mixture_weights
# says: only a larger budget is refused
# ValueError where the budget is exactly most_passes times everything: the caps are summed as
# floats (ten times 0.1 is below 1), though the run is possible

import math


def mixture_weights(sizes, temperature, budget, most_passes=4.0) -> list:
    caps = [most_passes * n / budget for n in sizes]
    total = 0.0
    for cap in caps:
        total += cap
    if total <= 1.0:
        raise ValueError("the sources would be read too often")
    free, weights, rest = set(range(len(sizes))), list(caps), 1.0
    while free:
        top = max(math.log(sizes[i]) / temperature for i in free)
        power = {i: math.exp(math.log(sizes[i]) / temperature - top) for i in free}
        share = {i: rest * power[i] / sum(power.values()) for i in free}
        over = {i for i in free if share[i] > caps[i]}
        if not over:
            for i in free:
                weights[i] = share[i]
            break
        rest -= sum(caps[i] for i in over)
        free -= over
    return weights
