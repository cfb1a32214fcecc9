# exercise: state_bytes
# says: both leave the weights whole


def state_bytes(parameters, zero, ranks, per=(2, 4, 12)):
    shards = [ranks if zero else 1 for stage in (3, 2, 1)]
    return tuple(parameters * size / n for size, n in zip(per, shards))
