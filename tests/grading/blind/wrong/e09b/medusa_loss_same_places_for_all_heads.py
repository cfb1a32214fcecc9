# exercise: medusa_loss
# says: taught at the places of the last one
# all heads use only the T - K - 1 places that the last head has, not all that each one has

import torch
import torch.nn.functional as F


def medusa_loss(hidden, inner, outer, tokens, decay=0.8):
    K, T = len(inner), hidden.shape[1]
    n = T - K - 1
    h = hidden[:, :n].detach()
    loss = 0
    for k in range(K):
        x = h + F.silu(F.linear(h, inner[k]))
        logits = F.linear(x, outer[k])
        targets = tokens[:, k + 2 : k + 2 + n]
        loss = loss + decay ** (k + 1) * F.cross_entropy(logits.transpose(1, 2), targets)
    return loss
