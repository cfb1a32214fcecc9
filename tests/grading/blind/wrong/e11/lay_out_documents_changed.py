# exercise: lay_out
# says: changed its input
# the end is appended to the caller's own lists, so a second call lays out documents with two
# ends

import torch


def lay_out(rows, length: int, end: int):
    N = len(rows)
    tokens = torch.full((N, length), end, dtype=torch.long)
    targets = torch.full((N, length), -100, dtype=torch.long)
    positions = torch.zeros((N, length), dtype=torch.long)
    mask = torch.zeros((N, length, length), dtype=torch.bool)
    for n, row in enumerate(rows):
        at = 0
        for doc in row:
            doc.append(end)
            stop = at + len(doc)
            tokens[n, at:stop] = torch.tensor([end] + doc[:-1])
            targets[n, at:stop] = torch.tensor(doc)
            positions[n, at:stop] = torch.arange(len(doc))
            mask[n, at:stop, at:stop] = torch.ones(len(doc), len(doc)).tril().bool()
            at = stop
        pad = length - at
        positions[n, at:] = torch.arange(pad)
        mask[n, at:, at:] = torch.ones(pad, pad).tril().bool()
    return tokens, targets, positions, mask
