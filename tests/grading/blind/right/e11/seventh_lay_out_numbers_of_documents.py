# exercise: lay_out
# differs: each place gets the number of its document, and the mask is one comparison of numbers
# for all rows at once
import itertools

import torch


def lay_out(rows, length: int, end: int):
    read, asked, place, owner = [], [], [], []
    for documents in rows:
        free = length - sum(len(document) + 1 for document in documents)
        inputs = [[end, *document] for document in documents]
        outputs = [[*document, end] for document in documents]
        read.append([*itertools.chain(*inputs), *[end] * free])
        asked.append([*itertools.chain(*outputs), *[-100] * free])
        place.append([*itertools.chain(*(range(len(d)) for d in inputs)), *[0] * free])
        numbers = [[k] * len(d) for k, d in enumerate(inputs)]
        owner.append([*itertools.chain(*numbers), *[len(inputs)] * free])

    def table(lists):
        return torch.tensor(lists, dtype=torch.int64).reshape(len(rows), length)

    document = table(owner)
    at = torch.arange(length)
    mask = (document[:, :, None] == document[:, None, :]) & (at[:, None] >= at[None, :])
    return table(read), table(asked), table(place), mask
