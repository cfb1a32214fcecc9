# exercise: state_bytes
# says: 2 also the gradients'
# each stage is taken to cut one thing only: stage 3 cuts weights and optimizer but no longer
# the gradients (zero == 2)

def state_bytes(
    parameters: float, zero: int, ranks: int, per: tuple[int, int, int] = (2, 4, 12)
) -> tuple[float, float, float]:
    weight, gradient, optimizer = (parameters * each for each in per)
    return (
        weight / ranks if zero == 3 else weight,
        gradient / ranks if zero == 2 else gradient,
        optimizer / ranks if zero >= 1 else optimizer,
    )
