# right: plain Python with statistics.median, which is the mean of the two middle values where their number is even (the text says "median", and no more).
from statistics import median


def slow_ranks(times, factor=1.1):
    compute = [median(reached - began for began, reached, _ in rank) for rank in times.tolist()]
    middle = median(compute)
    deviation = 1.4826 * median(abs(c - middle) for c in compute)
    limit = max(factor * middle, middle + 5 * deviation)
    return [rank for rank, c in enumerate(compute) if c > limit]
