# exercise: state_bytes
# says: gradients have the bytes that `per` says


def state_bytes(parameters, zero, ranks, per=(2, 4, 12)):
    shards = [ranks if zero >= stage else 1 for stage in (3, 2, 1)]
    return tuple(parameters * size / n for size, n in zip((2, 2, 12), shards))
