# exercise: lay_out
# whole rows as lists, joined with itertools; the mask by comparing the documents' numbers and the
# places, padding is one document more
from itertools import chain

import torch


def lay_out(rows, length: int, end: int):
    tokens, targets, positions, numbers = [], [], [], []
    for documents in rows:
        sizes = [len(document) + 1 for document in documents]
        padding = length - sum(sizes)
        read = chain.from_iterable([end, *document] for document in documents)
        asked = chain.from_iterable([*document, end] for document in documents)
        tokens.append([*read, *[end] * padding])
        targets.append([*asked, *[-100] * padding])
        sizes.append(padding)
        positions.append([place for size in sizes for place in range(size)])
        numbers.append([k for k, size in enumerate(sizes) for _ in range(size)])
    tokens, targets, positions, numbers = (
        torch.tensor(lists, dtype=torch.int64).reshape(len(rows), length)
        for lists in (tokens, targets, positions, numbers)
    )
    place = torch.arange(length)
    mask = (numbers.unsqueeze(2) == numbers.unsqueeze(1)) & (place[:, None] >= place)
    return tokens, targets, positions, mask
