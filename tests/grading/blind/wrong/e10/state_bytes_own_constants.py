# exercise: state_bytes
# says: `per` says others here
# takes 2, 4 and 12 bytes whatever per says; the docstring says "which have per bytes a
# parameter" (the table of the ZeRO paper has 2-byte gradients).

def state_bytes(
    parameters: float, zero: int, ranks: int, per: tuple[int, int, int] = (2, 4, 12)
) -> tuple[float, float, float]:
    def share(stage):
        return ranks if zero >= stage else 1

    return (
        2 * parameters / share(3),
        4 * parameters / share(2),
        12 * parameters / share(1),
    )
