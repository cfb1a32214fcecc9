# exercise: state_bytes
# says: in the order weights, gradients, optimizer


def state_bytes(parameters, zero, ranks, per=(2, 4, 12)):
    shards = [ranks if zero >= stage else 1 for stage in (3, 2, 1)]
    return tuple(parameters * size / n for size, n in zip(per, shards))[::-1]
