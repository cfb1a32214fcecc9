# right: lays out only tokens and document numbers; targets by a roll (each document begins with the end that the one before is asked for, and so does the row), positions by a running maximum of the starts; padding is at position 0
import torch


def lay_out(rows, length: int, end: int):
    N = len(rows)
    tokens = torch.full((N, length), end, dtype=torch.int64)
    owner = torch.zeros(N, length, dtype=torch.int64)  # 0: padding
    for n, docs in enumerate(rows):
        flat = [x for doc in docs for x in (end, *doc)]
        own = [d for d, doc in enumerate(docs, 1) for _ in range(len(doc) + 1)]
        tokens[n, : len(flat)] = torch.tensor(flat, dtype=torch.int64)
        owner[n, : len(own)] = torch.tensor(own, dtype=torch.int64)
    place = torch.arange(length)
    targets = tokens.roll(-1, dims=1).masked_fill(owner == 0, -100)
    begins = owner != owner.roll(1, dims=1)
    begins[:, :1] = True
    start = torch.where(begins, place, 0).cummax(dim=1).values
    positions = (place - start) * (owner > 0)
    mask = (owner.unsqueeze(2) == owner.unsqueeze(1)) & (place[:, None] >= place)
    return tokens, targets, positions, mask
