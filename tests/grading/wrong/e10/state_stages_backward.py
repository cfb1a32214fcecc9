# exercise: state_bytes
# says: stage 1 shards the optimizer alone


def state_bytes(parameters, zero, ranks, per=(2, 4, 12)):
    zero = {0: 0, 1: 3, 2: 2, 3: 1}[zero]
    return tuple(parameters * p / (ranks if zero >= s else 1) for p, s in zip(per, (3, 2, 1)))
