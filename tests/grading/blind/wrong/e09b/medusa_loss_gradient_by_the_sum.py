# exercise: medusa_loss
# says: a gradient has reached `hidden`
# detaches hidden only within silu: a gradient reaches it by the h that is added

import torch
import torch.nn.functional as F


def medusa_loss(hidden, inner, outer, tokens, decay=0.8):
    losses = []
    for k, (W, U) in enumerate(zip(inner, outer), start=1):
        h = hidden[:, : hidden.shape[1] - k - 1]
        x = h + F.silu(h.detach() @ W.T)
        logits = x @ U.T
        loss = F.cross_entropy(logits.reshape(-1, U.shape[0]), tokens[:, k + 1 :].reshape(-1))
        losses.append(decay**k * loss)
    return torch.stack(losses).sum()
