# exercise: medusa_loss
# says: W h is `x @ W.t()` for rows x
# h @ W_k instead of W_k h: the matrix is used transposed

import torch
import torch.nn.functional as F


def medusa_loss(hidden, inner, outer, tokens, decay=0.8):
    hidden = hidden.detach()
    loss = 0.0
    for k in range(1, len(inner) + 1):
        h = hidden[:, : -(k + 1)]
        h = h + F.silu(h @ inner[k - 1])
        logits = h @ outer[k - 1].T
        targets = tokens[:, k + 1 :]
        loss = loss + decay**k * F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return loss
