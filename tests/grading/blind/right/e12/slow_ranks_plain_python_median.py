# right: plain Python; over the steps statistics.median, which is the mean of the two middle values
# where their number is even; over the ranks, as the text says now, torch.median's, the lower one
from statistics import median, median_low


def slow_ranks(times, factor=1.1):
    compute = [median(reached - began for began, reached, _ in rank) for rank in times.tolist()]
    middle = median_low(compute)
    deviation = 1.4826 * median_low(abs(c - middle) for c in compute)
    limit = max(factor * middle, middle + 5 * deviation)
    return [rank for rank, c in enumerate(compute) if c > limit]
