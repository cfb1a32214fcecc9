# exercise: state_bytes
# says: weights are cut from stage 3 on
# stage 2 shards the weights and stage 3 the gradients, against "ZeRO shards the optimizer over
# the data ranks (stage 1), then gradients (2), then weights (3)".

def state_bytes(
    parameters: float, zero: int, ranks: int, per: tuple[int, int, int] = (2, 4, 12)
) -> tuple[float, float, float]:
    weights = parameters * per[0] / (ranks if zero >= 2 else 1)
    gradients = parameters * per[1] / (ranks if zero >= 3 else 1)
    optimizer = parameters * per[2] / (ranks if zero >= 1 else 1)
    return weights, gradients, optimizer
