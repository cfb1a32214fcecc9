# exercise: lay_out
# says: each document is read with the end *before* it
# the end is read behind a document (t1..tn end) and asked for t2..tn end, -100

import torch


def lay_out(rows, length: int, end: int):
    n = len(rows)
    tokens = torch.full((n, length), end)
    targets = torch.full((n, length), -100)
    positions = torch.zeros(n, length, dtype=torch.long)
    which = torch.full((n, length), -1)
    for r, documents in enumerate(rows):
        start = 0
        for d, document in enumerate(documents):
            stop = start + len(document) + 1
            tokens[r, start:stop] = torch.tensor(document + [end])
            targets[r, start:stop] = torch.tensor((document + [end])[1:] + [-100])
            positions[r, start:stop] = torch.arange(stop - start)
            which[r, start:stop] = d
            start = stop
    same = which.unsqueeze(2) == which.unsqueeze(1)
    causal = torch.tril(torch.ones(length, length, dtype=torch.bool))
    return tokens, targets, positions, same & causal
