# exercise: embed
# says: the backward of an all-gather sums what the ranks say
# gathers the whole (V, D) table on every rank and looks tokens up there; "A token is looked up
# where its row is, the others give zeros, and the sum is everybody's"

import torch


def embed(tokens: torch.Tensor, weight: torch.Tensor, tp) -> torch.Tensor:
    table = tp.all_gather(weight[None])[0]  # (V, D)
    return table[tokens]
