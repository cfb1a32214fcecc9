# exercise: lay_out
# says: padding looks into a document
# padding is given the number of the row's last document, so padding looks at that document's
# tokens too

import torch


def lay_out(rows, length: int, end: int):
    tokens, targets, positions, owner = [], [], [], []
    for row in rows:
        read, asked, place, own = [], [], [], []
        for number, doc in enumerate(row):
            read += [end, *doc]
            asked += [*doc, end]
            place += range(len(doc) + 1)
            own += [number] * (len(doc) + 1)
        pad = length - len(read)
        tokens.append(read + [end] * pad)
        targets.append(asked + [-100] * pad)
        positions.append(place + list(range(pad)))
        owner.append(own + [max(len(row) - 1, 0)] * pad)
    owner = torch.tensor(owner).reshape(-1, length)
    mask = owner[:, :, None] == owner[:, None, :]
    mask &= torch.tril(torch.ones(length, length, dtype=torch.bool))
    tokens, targets, positions = (
        torch.tensor(x, dtype=torch.int64).reshape(-1, length)
        for x in (tokens, targets, positions)
    )
    return tokens, targets, positions, mask
