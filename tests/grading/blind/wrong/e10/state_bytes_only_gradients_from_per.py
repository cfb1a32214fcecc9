# exercise: state_bytes
# says: `per` says others here
# takes only the gradients' bytes from `per` and keeps 2 and 12 for weights and optimizer, which
# is right for all of the ZeRO table; the docstring: weights, gradients, optimizer "have `per`
# bytes a parameter".

def state_bytes(
    parameters: float, zero: int, ranks: int, per: tuple[int, int, int] = (2, 4, 12)
) -> tuple[float, float, float]:
    weights = 2 * parameters / (ranks if zero >= 3 else 1)
    gradients = per[1] * parameters / (ranks if zero >= 2 else 1)
    optimizer = 12 * parameters / (ranks if zero >= 1 else 1)
    return weights, gradients, optimizer
