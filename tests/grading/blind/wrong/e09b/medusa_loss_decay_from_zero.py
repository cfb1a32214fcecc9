# exercise: medusa_loss
# says: head 1 has `decay`, not 1
# the weights begin with decay ** 0 = 1 for the first head, not with decay ** 1

import torch
import torch.nn.functional as F


def medusa_loss(hidden, inner, outer, tokens, decay=0.8):
    h = hidden.detach()
    K, T = len(inner), tokens.shape[1]
    loss = 0.0
    for k in range(1, K + 1):
        x = h[:, : T - k - 1]
        x = x + F.silu(x @ inner[k - 1].t())
        logits = x @ outer[k - 1].t()
        target = tokens[:, k + 1 :]
        loss = loss + decay ** (k - 1) * F.cross_entropy(logits.flatten(0, 1), target.flatten())
    return loss
