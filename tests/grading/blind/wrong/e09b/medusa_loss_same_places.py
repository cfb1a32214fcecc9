# exercise: medusa_loss
# says: all heads were taught at the places of the last one
# all heads learn from the same T - K - 1 places, those that have a token for the last head; the
# further places of the earlier heads are left out

import torch
import torch.nn.functional as F


def medusa_loss(hidden, inner, outer, tokens, decay=0.8):
    h = hidden.detach()
    K, T = len(inner), tokens.shape[1]
    loss = 0.0
    for k in range(1, K + 1):
        x = h[:, : T - K - 1]
        x = x + F.silu(x @ inner[k - 1].t())
        logits = x @ outer[k - 1].t()
        target = tokens[:, k + 1 : T - K + k]
        loss = loss + decay ** k * F.cross_entropy(logits.flatten(0, 1), target.flatten())
    return loss
