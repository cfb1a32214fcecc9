# exercise: lay_out
# says: the last place of a full row loses its target
# targets are the tokens shifted by one, and where a row is full its last place is not asked for
# the end (-100)

import torch


def lay_out(rows, length: int, end: int):
    tokens = torch.full((len(rows), length), end, dtype=torch.int64)
    targets = torch.full_like(tokens, -100)
    positions = torch.zeros_like(tokens)
    document = torch.full_like(tokens, -1)
    for n, docs in enumerate(rows):
        at = 0
        for d, ids in enumerate(docs):
            size = len(ids) + 1
            tokens[n, at + 1 : at + size] = torch.tensor(ids, dtype=torch.int64)
            positions[n, at : at + size] = torch.arange(size)
            document[n, at : at + size] = d
            at += size
        stop = min(at, length - 1)
        targets[n, :stop] = tokens[n, 1 : stop + 1]
    same = document[:, :, None] == document[:, None, :]
    return tokens, targets, positions, same & torch.ones(length, length).tril().bool()
