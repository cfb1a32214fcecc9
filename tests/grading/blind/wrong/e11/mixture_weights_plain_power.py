# exercise: mixture_weights
# says: is too large for a float
# n ** (1 / T) as it is: overflows for T well below 1

def mixture_weights(sizes, temperature, budget, most_passes=4.0) -> list:
    if most_passes * sum(sizes) < budget:
        raise ValueError("the sources are too small for this budget")
    powers = [float(n) ** (1 / temperature) for n in sizes]
    free, left = set(range(len(sizes))), 1.0
    shares = [0.0] * len(sizes)
    while free:
        total = sum(powers[i] for i in free)
        now = {i: left * powers[i] / total for i in free}
        over = [i for i in free if now[i] > most_passes * sizes[i] / budget]
        if not over:
            for i in free:
                shares[i] = now[i]
            break
        for i in over:
            shares[i] = most_passes * sizes[i] / budget
            left -= shares[i]
            free.discard(i)
    return shares
