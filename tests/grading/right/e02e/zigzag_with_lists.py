import torch


def zigzag(T, n):
    """Token by token, in plain Python."""
    if T % (2 * n) != 0:
        raise ValueError(f"{T} is not a multiple of {2 * n}")
    c, held, back = T // (2 * n), [], [0] * T
    for rank in range(n):
        held += range(rank * c, rank * c + c)
        held += range((2 * n - 1 - rank) * c, (2 * n - rank) * c)
    for where, place in enumerate(held):
        back[place] = where
    return torch.tensor(held).reshape(n, -1), torch.tensor(back)
