# right: sorts the sources by cap / n^(1/T) and fills them in that order (water level), all in logarithms
import math


def mixture_weights(sizes, temperature, budget, most_passes=4.0) -> list:
    sizes = [float(n) for n in sizes]
    if most_passes * math.fsum(sizes) < budget:
        raise ValueError("even with all passes the sources hold fewer tokens than the run reads")
    caps = [most_passes * n / budget for n in sizes]
    logs = [math.log(n) / temperature for n in sizes]
    # the source whose cap is reached first comes first
    order = sorted(range(len(sizes)), key=lambda i: math.log(caps[i]) - logs[i])
    shares, left = [0.0] * len(sizes), 1.0
    for place, i in enumerate(order):
        rest = order[place:]
        top = max(logs[j] for j in rest)
        total = math.fsum(math.exp(logs[j] - top) for j in rest)
        wanted = left * math.exp(logs[i] - top) / total
        shares[i] = min(caps[i], wanted)
        left -= shares[i]
    return shares
