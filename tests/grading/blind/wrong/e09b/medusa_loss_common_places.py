# exercise: medusa_loss
# says: taught at the places of the last one
# all heads are taught at the T - K - 1 places that have a token for the last head: head 1
# misses places that it has a token for

import torch
import torch.nn.functional as F


def medusa_loss(hidden, inner, outer, tokens, decay=0.8):
    K, T = len(inner), tokens.shape[1]
    h = hidden.detach()[:, : T - K - 1]
    loss = 0.0
    for k in range(1, K + 1):
        x = h + F.silu(h @ inner[k - 1].T)
        logits = x @ outer[k - 1].T
        wanted = tokens[:, k + 1 : k + 1 + h.shape[1]]
        loss = loss + decay**k * F.cross_entropy(logits.transpose(1, 2), wanted)
    return loss
