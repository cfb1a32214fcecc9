# exercise: medusa_loss
# says: W was multiplied from the other side
# h @ W instead of h @ W.T : the wrong axis of the square W_k

import torch
import torch.nn.functional as F


def medusa_loss(hidden, inner, outer, tokens, decay=0.8):
    h, T = hidden.detach(), tokens.shape[1]
    loss = 0.0
    for k, (W, U) in enumerate(zip(inner, outer), 1):
        x = h[:, : T - k - 1]
        x = x + F.silu(x @ W)
        logits = x @ U.T
        loss = loss + decay**k * F.cross_entropy(
            logits.flatten(0, 1), tokens[:, k + 1 :].flatten()
        )
    return loss
