# a reader's answer to `lay_out`, in which others made the mistakes of wrong/e11/lay_out_reader.diff

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
            tokens[r, start:stop] = torch.tensor([end] + document)
            targets[r, start:stop] = torch.tensor(document + [end])
            positions[r, start:stop] = torch.arange(stop - start)
            which[r, start:stop] = d
            start = stop
    same = which.unsqueeze(2) == which.unsqueeze(1)
    causal = torch.tril(torch.ones(length, length, dtype=torch.bool))
    return tokens, targets, positions, same & causal
